"""How a run ended that `postmortem run` watched, and the fault and the culprit that were found: as noted beside its
history."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.checkpoints.histories import ended_as, history_of
from postmortem.core.model import Ended, Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.culprit import Culprit, Watched
    from postmortem.core.reading import Reading
    from postmortem.core.run import Stream
    from postmortem.runs.claimed import Part

_MOST_BYTES = 16 << 20
_LATER = 60.0
"""Seconds after the end of the program after which its files are no more written by it, but by another one."""
_SIGNALS: dict[int, Ended] = {2: "interrupted", 9: "killed", 15: "interrupted"}
_WHAT = {
    "loss": "the loss is non-finite",
    "skipped-loss": "the loss is non-finite, and the program left it out",
    "gradient": "gradients are non-finite, and the program did not use them",
    "buffer": "buffers of the model are non-finite",
    "parameter": "parameters are non-finite after the update",
}


def watched(parts: Sequence[Part], streams: Sequence[Stream]) -> Watched | None:
    """What is noted of the run with these files; None without a history, while it runs, and if it went on since."""
    histories = list(dict.fromkeys(p.path.parent for p in parts if history_of(p.path) is not None))
    noted = [(history, facts) for history in histories if (facts := ended_as(history))]
    if not noted:
        return None
    from postmortem.core.culprit import Watched  # most runs were not watched

    history, facts = next((one for one in noted if one[1]["fault"] or one[1]["culprit"]), noted[0])
    code, when = facts["code"], facts["time"]
    if not isinstance(code, int) or not isinstance(when, float) or _goes_on(parts, streams, when):
        return None
    fault, saved = facts["fault"], _saved(facts["culprit"])
    culprit, actions = _culprit(saved)
    if fault is None:
        return Watched(ended=_ended(code), exit_code=code, culprit=culprit, next=actions)
    stopped = bool(fault.get("stopped"))
    event = _event(fault, culprit, facts["culprit"] if saved else history)
    return Watched(ended="interrupted" if stopped else _ended(code), event=event, culprit=culprit, next=actions)


def record(noted: Watched | None, readings: Sequence[tuple[Part, Reading]]) -> list[Event]:
    """Gives the history the exit code of its program -> the fault that was seen, as an event of the run."""
    if noted is None:
        return []
    for part, reading in readings:
        if history_of(part.path) is not None and noted.exit_code:
            reading.facts["exit_code"] = noted.exit_code if noted.exit_code > 0 else 128 - noted.exit_code
    return [noted.event] if noted.event is not None else []


def _goes_on(parts: Sequence[Part], streams: Sequence[Stream], when: float) -> bool:
    """Whether something was logged after the program had ended: then the files are of a later training as well."""
    logged = [stream.points.cells("wall_time") for stream in streams if len(stream.points)]
    known = [float(np.nanmax(wall)) for wall in logged if np.isfinite(wall).any()]
    if max(known, default=0.0) > when + _LATER:
        return True
    others = [part.path for part in parts if history_of(part.path) is None]
    with suppress(OSError):
        newest = max((path.stat().st_mtime for path in others), default=0.0)
        copied = max(path.stat().st_mtime for path in (p.path for p in parts) if history_of(path) is not None)
        return newest > max(when, copied) + _LATER  # a copy of the folder has times of its own
    return False


def _ended(code: int) -> Ended:
    if code == 0:
        return "completed"
    return _SIGNALS.get(-code if code < 0 else code - 128, "crashed")


def _saved(path: Path | None) -> dict[str, Any]:
    """The answer that was saved; {} where there is none any more."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("culprit"), dict) else {}


def _culprit(saved: dict[str, Any]) -> tuple[Culprit | None, tuple[str, ...]]:
    """The culprit that was saved, and what to do; None where none was named, or the file is of another form."""
    from postmortem.core.culprit import Culprit, Fidelity

    try:
        culprit = Culprit.from_json(saved.get("culprit", {"cause": "none", "phase": "none"}))
        told: dict[str, Any] = {**(saved.get("fidelity") or {})}
        told["reasons"] = tuple(told.get("reasons") or ())
        fidelity = Fidelity(**{k: v for k, v in told.items() if k in {f.name for f in fields(Fidelity)}})
        actions = (*map(str, saved.get("next") or ()), *_captured(saved))
    except (TypeError, ValueError, AttributeError):
        return None, ()
    if culprit.phase == "none":
        return None, ()
    return replace(culprit, fidelity=fidelity), actions


def _captured(saved: dict[str, Any]) -> Iterator[str]:
    """How to repeat the step at fault, where it was captured and the capture is still there."""
    for capture in saved.get("captures") or ():
        path = str(capture.get("path", ""))
        if capture.get("tick") == saved.get("tick") and path and Path(path).is_dir():
            command = shlex.join(map(str, saved.get("command") or ("COMMAND",)))
            yield f"repeat the step from its capture: `postmortem replay {shlex.quote(path)} -- {command}`"


def _event(fault: dict[str, Any], culprit: Culprit | None, source: Path) -> Event:
    """The fault as a message of the watch, at the step of the run that it was seen in."""
    step = fault.get("step")
    what = _WHAT.get(str(fault.get("what")), "a value is non-finite")
    named = f", by {culprit.op or culprit.cause}" if culprit is not None else ""
    where = f" at {Path(culprit.file).name}:{culprit.line}" if culprit is not None and culprit.file else ""
    end = "; --stop ended the program there" if fault.get("stopped") else ""
    return Event(
        kind="nan-report",
        severity="info",  # the finding that is made of it says how grave it is
        file=os.path.normpath(source),
        step=step if isinstance(step, int) else None,
        message=f"{what}{named}{where}{end}",
        fields={"fault": str(fault.get("what")), "stopped": bool(fault.get("stopped"))},
        source="watch",
    )
