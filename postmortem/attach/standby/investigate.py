"""The work of a woken copy, or of a process that repeats the step itself: repeats it, records its inputs, and runs the
stages of the diagnosis."""

from __future__ import annotations

import math
import time
import warnings
from typing import TYPE_CHECKING, Any

from postmortem.attach.standby.jump import JUMPS, jumped
from postmortem.attach.standby.keeping import keep
from postmortem.attach.standby.plan import Plan, Reply
from postmortem.attach.standby.session import AttemptSession
from postmortem.core.culprit import Culprit
from postmortem.core.errors import ReplayError
from postmortem.replay.culprit.investigation import Investigation
from postmortem.replay.culprit.stages import diagnose
from postmortem.replay.rerun.determinism import Again
from postmortem.replay.rerun.session import TRIES, Failure
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.attach.standby.scene import Repeatable


_EXPECTED = {
    "loss": ("loss",),
    "skipped-loss": ("loss",),
    "gradient": ("grad",),
    "parameter": ("param", "grad"),
    "buffer": ("param",),
    "raised": ("loss", "grad", "param"),
}
"""Kind of the fault -> where the repeated tick may first have non-finite values."""


def investigate(copy: Repeatable, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, as plain JSON types: see `Standby.investigate`."""
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = _answer(copy, request)
    return {**answer, "what": copy.kind, "attempts": copy.asked, "seconds": round(time.monotonic() - began, 3)}


def _answer(copy: Repeatable, request: Mapping[str, Any]) -> dict[str, Any]:
    if request["kind"] == "requested":
        _look(copy)
        return {"repeated": False, "tick": copy.tick, "capture": keep(copy, request)}
    again, request = _first_failing(copy, request)
    why = _differs(copy, again, request["losses"])
    if why:
        found = Culprit(cause="none", phase="none", how=(why,))
        _look(copy)
        return {"repeated": False, "tick": copy.tick, "culprit": found.as_json(), **_kept(copy, request)}
    if again.stage == "loss":
        copy.failing_pass = again.passes
    looked = _look(copy)
    kept = _kept(copy, request)
    if copy.kind in JUMPS:
        copy.failing_pass = sum(tick == copy.tick for tick, _ in request["losses"])
        session = AttemptSession(copy, looked.autocast)
        jump = jumped(copy, request["above"], request["course"], session, fixes=bool(request["fixes"]))
        return {"repeated": True, "tick": copy.tick, "culprit": jump.as_json(), **kept}
    case = _case(copy, request, again, looked)
    try:
        found = diagnose(case)
        if case.reruns.luck.times > case.times:  # the attempts turned out to be nondeterministic: cures may be luck
            found = diagnose(_case(copy, request, again, looked, times=TRIES))
    except ReplayError as error:  # the program raises without a non-finite value
        return {"tick": copy.tick, "error": str(error), **kept}
    answer: dict[str, Any] = {"repeated": True, "tick": copy.tick, "culprit": found.as_json(), **kept}
    several = max(copy.micro_batches, request.get("passes", 0)) > 1  # of the failing tick the rest was not seen
    if several and (micro := _micro_batch(copy, case.samples.rows, found)) is not None:
        answer["micro_batch"] = micro
    return answer


def _first_failing(copy: Repeatable, request: Mapping[str, Any]) -> tuple[Reply, Mapping[str, Any]]:
    """The tick at fault, repeated, and the request up to it.

    Parameters and buffers are looked at in some ticks only, so that an earlier one may have made them non-finite: of a
    copy that is older, the first tick that did is the one at fault.
    """
    told = copy.tick
    again = copy.ask(Plan(first=copy.kind not in JUMPS and told > request["forked"] + 1))
    if again.earlier is not None:
        copy.tick, copy.kind = again.earlier
        last = {tick: float.fromhex(loss) for tick, loss in request["losses"] if copy.tick <= tick < told}
        last = {tick: loss for tick, loss in last.items() if tick not in request["others"]}
        losses = [pair for pair in request["losses"] if pair[0] <= copy.tick]
        course = request["course"][: len(request["course"]) - sum(map(math.isfinite, last.values()))]
        request = {**request, "losses": losses, "course": course}
        again = copy.ask(Plan())
    return again, request


def _micro_batch(copy: Repeatable, rows: int, found: Culprit) -> int | None:
    """The one whose loss is non-finite, else that of the samples at fault; None where these are in several, or none
    are known."""
    if copy.failing_pass is not None:
        return copy.failing_pass - 1
    parts = {sample // rows for sample in found.samples or ()} if rows else set()
    return parts.pop() if len(parts) == 1 else None


def _look(copy: Repeatable) -> Reply:
    """A first look at what enters the tick."""
    looked = copy.ask(Plan(survey=True, tracer=Tracer(look=False)))
    if looked.entered is not None:
        copy.enters(looked.entered)
    return looked


def _kept(copy: Repeatable, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"capture": keep(copy, request)} if request.get("capture") else {}


def _differs(copy: Repeatable, again: Reply, losses: list[tuple[int, str]]) -> str:
    """Why the repeated tick is not the one that failed; empty if it is, bit for bit."""
    if again.failed:
        return f"the step could not be repeated: {again.failed}"
    common = list(zip(losses, again.losses, strict=False))
    if any(a != b for a, b in common) or len(again.losses) < len(losses):
        at = next((i for i, (a, b) in enumerate(common) if a != b), len(common))
        seen = f"after {at} equal losses" if at else "from its first loss on"
        return f"{copy.where}, the program goes another way {seen}: nobody can be blamed"
    if copy.kind in JUMPS:
        return ""
    if again.stage is None and again.raised is None:
        return f"{copy.where}, every loss, gradient and parameter is finite: a transient fault"
    if again.raised is None and again.stage not in _EXPECTED[copy.kind]:
        return f"{copy.where}, the step fails in another way ({again.stage})"
    return ""


def _case(
    copy: Repeatable, request: Mapping[str, Any], again: Reply, looked: Reply, *, times: int = 1
) -> Investigation:
    message = f"{copy.where}, the step gives bitwise identical losses"
    failure = Failure(
        step=copy.tick,
        last=copy.tick,
        first=request["forked"] + 1,
        scale=next((float(s.get_scale()) for s in copy.program.scalers), 1.0),
        lr=next((float(g["lr"]) for o in copy.program.optimizers for g in o.param_groups if "lr" in g), 0.0),
        raised=again.raised,
        course=request["course"],
        again=Again(message, True, False),
    )
    session = AttemptSession(copy, looked.autocast)
    return Investigation(session, failure, fixes=bool(request["fixes"]), times=times)
