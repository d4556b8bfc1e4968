"""`postmortem replay CAPTURE -- COMMAND`: continues the command from a capture. Runs in our own process."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.driver import denied, shut_in
from postmortem.attach.outcome import Outcome
from postmortem.attach.printed import last_words
from postmortem.checkpoints.captures import step_of
from postmortem.core.culprit import Fidelity
from postmortem.core.errors import ReplayError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from postmortem.attach.answers import Process
    from postmortem.core.culprit import ReplayResult


_OTHER = (
    "data that do not come from a DataLoader, or another state that the capture does not hold",
    "another code, configuration or version than when the capture was written",
)
"""Why a step may not be repeated."""


def recall(
    capture: Path,
    command: Sequence[str],
    *,
    step: int | None = None,
    fix: bool = True,
    sandbox: str = "auto",
    offline: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
    fork: bool = True,
) -> ReplayResult:
    """Runs `command`, shut in, with the state and the batches of `capture`, and names the culprit of its step.

    Raises ReplayError with the reason in one line.
    """
    if step is not None:
        raise UsageError("a capture holds one step: --step is for a run")
    started = time.monotonic()
    capture = capture.resolve()
    session = launch.new_session()
    plan: dict[str, Any] = {"mode": "replay", "fix": fix, "on_fault": "stop", "fork": fork, "recall": str(capture)}
    answers = Answers(session)
    with shut_in(command, capture, plan, session, offline=offline, sandbox=sandbox) as launched:
        launched.wait(until=partial(_enough, answers, progress))
        stopped = not launched.ended
        (session / "done").touch()
        if launched.failed:
            raise ReplayError(launched.failed)
        answers.poll()
        denied(launched, answers.at_fault())
        launched.stop()
        process = _recalled(answers)
        if process is None and not stopped and answers.at_fault() is None:
            if not answers.trainers:
                raise ReplayError(answers.unseen(launched.returncode, last_words(session), command))
            raise ReplayError("the command ended before its first step that could go on from the capture")
        result = _result(Outcome(str(capture), tuple(command), answers, None, launched.how), process, capture)
        launched.remove()
    return replace(result, seconds=time.monotonic() - started)


def _recalled(answers: Answers) -> Process | None:
    return next((p for p in answers.processes.values() if p.recalled is not None), None)


def _enough(answers: Answers, progress: Callable[[int, int | None], None] | None) -> bool:
    """The fault is answered, or the step of the capture is passed."""
    answers.poll()
    process = _recalled(answers)
    if progress is not None:
        progress(max((p.ticks for p in answers.trainers), default=0), None)
    at_fault = answers.at_fault()
    if at_fault is not None and (at_fault.culprit is not None or at_fault.unexamined):
        return process is None or at_fault is process
    if process is None or process.recalled is None:
        return False
    return "error" in process.recalled or process.ticks > process.recalled["tick"]


def _result(outcome: Outcome, process: Process | None, capture: Path) -> ReplayResult:
    told = process.recalled if process is not None else None
    if told is not None and "error" in told:
        raise ReplayError(told["error"])
    fidelity, trail = _fidelity(process)
    if told is not None:
        trail += [f"code or environment: {line}" for line in told["changes"]]
        trail += [f"not in the capture: {line}" for line in (*told["unstored"], *told["lacks"])]
    result = outcome.of_capture(fidelity, trail)
    return replace(result, step=step_of(capture), culprit=replace(result.culprit, step=step_of(capture)))


def _fidelity(process: Process | None) -> tuple[Fidelity, list[str]]:
    """Whether the losses of the step are those of the capture, bit for bit."""
    if process is None or process.recalled is None:
        return Fidelity(ok=False, note="the program failed before it could go on from the capture"), []
    told = process.recalled
    made = [p.loss.hex() for p in process.passes if p.tick == told["tick"]]
    kept = told["losses"]
    start = [f"the state of the capture was put in before optimizer step {told['tick']} of the command"]
    if told["cause"] == "raised" and process.raised is None and process.fault is None:
        note = "the captured step ended with an exception, here it ends without one: the step is not repeated"
        return Fidelity(ok=False, note=note, reasons=_OTHER), start
    if not kept:
        return Fidelity(ok=True, note="the capture holds no loss: there is nothing to compare"), start
    compared = min(len(made), len(kept))
    exact = sum(a == b for a, b in zip(made, kept, strict=False))
    ok = exact == compared == len(kept)
    shown = ", ".join(f"{float.fromhex(v):.6g}" for v in kept[:4])
    note = f"the loss of the step is that of the capture, bit for bit ({shown})"
    reasons: tuple[str, ...] = ()
    if not ok:
        made_ = ", ".join(f"{float.fromhex(v):.6g}" for v in made[:4]) or "none"
        note = f"the loss of the step is {made_}, in the capture it is {shown}: the step is not repeated"
        reasons = _OTHER
    return Fidelity(ok=ok, compared=compared, exact=exact, note=note, reasons=reasons), start
