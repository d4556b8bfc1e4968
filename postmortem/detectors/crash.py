from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.core.model import Finding
from postmortem.core.patterns import later
from postmortem.core.training_length import training_length
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Event
    from postmortem.core.view import View

_BY_SIGNAL = (130, 143, 255)
"""Exit codes of programs that were stopped: by Ctrl-C, by SIGTERM; W&B records 255 for a KeyboardInterrupt."""

_TRAINED = ("loss", "val_loss", "accuracy", "val_accuracy", "reward", "perplexity")


@detector
class Crash(BaseDetector):
    """The log shows that the program failed: an exception, an out-of-memory error, a kill.

    What it looks for: events of severity error whose signature marks them as a cause, not as a consequence on other
    ranks or in the launcher; without any, attempts that failed before others in a log that shows no training at all (a
    warning); a recorded exit code (W&B) that is not 0, and as info, a signal that ended the run from outside.

    Why it matters: it ended the run; the finding gives the line of the log.

    How: no statistics. A message that several ranks print, or that is repeated, is one finding that names the ranks;
    the first one in the log comes first.

    Typical causes: see the page of the signature (`postmortem explain <kind>`).

    What to try: follow the advice of the signature; use `postmortem replay` if there is a checkpoint from before the
    crash.

    Known false positives: an exception that the program caught, after which training continued, is reported as `info`;
    so is one after which a program went on that logs nothing of a training, such as a server or a tracker's own log.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Maximum number of crashes reported per run."""

        most: int = 20

    code = "RUN003"
    name = "crash"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        same: dict[tuple[str, str, str], list[Event]] = defaultdict(list)
        for event in view.events:
            if event.severity == "error":
                same[event.file, event.kind, re.sub(r"0x[0-9a-f]+|\d+", "#", event.message)].append(event)
        crashes = _unique(list(same.values()))[: self.options.most]
        if not crashes:
            yield from self._exit_codes(view)
            yield from list(self._attempts(view)) or self._signal(view)
        caused = any(not _is_consequence(kind) for kind, _ in crashes)
        for kind, events in crashes:
            first = events[0]
            ranks = _ranks(events)
            where = f", line {first.line} of {first.file.rsplit('/', 1)[-1]}" if first.line is not None else ""
            exception = first.fields.get("exception") or first.fields.get("class") or kind
            survived = view.run.ended == "completed"
            requeued = not survived and _was_requeued(view, events[-1])
            follows = caused and _is_consequence(kind)
            caught = all(e.fields.get("printed_on") for e in events) and not view.of(*_TRAINED, "lr", "grad_norm")
            text = first.message.splitlines()[0] if first.message else exception
            causes = [str(cause) for cause in first.fields.get("causes") or []]
            text += f" (caused by {causes[0].splitlines()[0]})" if causes else ""
            yield Finding(
                code=self.code,
                name=self.name,
                severity="info" if survived or requeued or follows or caught else "error",
                message=f"{kind}{_who(ranks, first)}{where}: {text}"
                + (" (the run continued and completed)" if survived else "")
                + (" (the job was queued again and went on)" if requeued else "")
                + (" (the program went on; nothing of a training is logged)" if caught else ""),
                rank=first.rank,
                step=first.step,
                wall_time=first.wall_time if math.isfinite(first.wall_time) else None,
                evidence={
                    "kind": kind,
                    "exception": exception,
                    "file": first.file,
                    "line": first.line,
                    "count": sum(int(e.fields.get("count", 1)) for e in events),
                    "ranks": ranks,
                    "lines": [e.line for e in events[:16] if e.line is not None],
                    "causes": causes,
                    "frame": first.fields.get("frame"),
                    "advice": first.fields.get("advice") or [],
                    "unreadable": _unreadable(first),
                },
            )

    def _exit_codes(self, view: View) -> Iterator[Finding]:
        """A recorded exit code that is not 0, where no message says what happened."""
        if view.run.ended in ("completed", "interrupted"):
            return
        for reading in view.run.readings:
            code = reading.facts.get("exit_code")
            if isinstance(code, int) and code != 0:
                name = reading.path.rsplit("/", 1)[-1]
                stopped = code in _BY_SIGNAL
                yield Finding(
                    code=self.code,
                    name=self.name,
                    severity="info" if stopped else "error",
                    message=f"{name} records exit code {code}: the program "
                    + (
                        "was stopped by a signal, such as Ctrl-C"
                        if stopped
                        else "failed; no message in the log says why"
                    ),
                    step=view.last_step,
                    evidence={"kind": "exit-code", "exit_code": code, "file": reading.path},
                )

    def _attempts(self, view: View) -> Iterator[Finding]:
        """Attempts that failed in a log in which no attempt ever printed a loss or a score."""
        failed = [e for e in view.events if e.fields.get("exception") and _was_followed(e)]
        attempts = {int(e.fields.get("attempt", 1)) for e in failed}
        if view.run.ended == "completed" or view.main(*_TRAINED) is not None or not attempts:
            return
        last = failed[-1]
        where = f"line {last.line} of {last.file.rsplit('/', 1)[-1]}"
        told = str(last.fields.get("exception_message") or last.message).splitlines() or [""]
        count = "1 attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
        yield Finding(
            code=self.code,
            name=self.name,
            severity="warning",
            message=f"{count} failed, and no later one printed a loss or a score; the last failure is in {where}: "
            f"{last.fields['exception']}: {told[0]}",
            evidence={"kind": last.kind, "file": last.file, "line": last.line, "lines": [e.line for e in failed[:16]]},
        )

    def _signal(self, view: View) -> Iterator[Finding]:
        """A signal from outside that ended the run, where no process had failed."""
        cancelled = view.run.ended == "interrupted"
        kinds = ("slurm-cancelled", "sigterm") if cancelled else ("sigterm",)
        event = next((e for kind in kinds for e in reversed(view.events) if e.kind == kind), None)
        if view.run.ended not in ("killed", "interrupted") or event is None:
            return
        length = training_length(view)
        where = f"at step {view.last_step}" if length is None else str(length)
        what = "a signal from outside ended the run"
        if cancelled:
            what = "the job was cancelled" if event.kind == "slurm-cancelled" else "the run was interrupted"
        yield Finding(
            code=self.code,
            name=self.name,
            severity="info",
            message=f"{what} {where}: " + _SIGNAL.sub("", (event.message.splitlines() or [""])[0]),
            rank=event.rank,
            step=event.step if event.step is not None else view.last_step,
            evidence={"kind": event.kind, "file": event.file, "line": event.line},
        )


def _unreadable(event: Event) -> str | None:
    """The file of the data set that an exception names as one that cannot be read."""
    kinds = {event.kind, event.fields.get("cause_kind")}
    if not kinds & {"sample-unreadable", "data-corrupt"}:
        return None
    named = event.fields.get("file")
    if not named:  # a program may add the file to a message of a library that has none
        said = [event.fields.get("exception_message") or event.message, *(event.fields.get("causes") or ())]
        named = next((found["file"] for text in reversed(said) if (found := _AT_END.search(str(text)))), None)
    return str(named).strip() or None if named else None


_AT_END = later(r"(?:^|[\s'\"(=:])(?P<file>[\w.~-]{0,60}/[\w./@+-]{1,300}\.\w{2,6})['\")\]]{0,3}\.?$")
"""The path of a file at the end of a message."""
_SIGNAL = later(r"^.*[\]|](?=(?:\[rank: \d+\] )?Received SIG)")
"""The bar that a message about a signal was printed behind."""


def _ranks(events: list[Event]) -> list[int]:
    """The ranks that reported a crash, sorted."""
    return sorted({rank for e in events for rank in e.fields.get("ranks") or [e.rank] if rank is not None})


def _who(ranks: list[int], first: Event) -> str:
    if not ranks:
        return ""
    return f" on rank {ranks[0]}" if len(ranks) == 1 else f" on {len(ranks)} ranks, {first.rank} first"


def _was_followed(event: Event) -> bool:
    """Whether an exception ended an attempt after which another one was started."""
    if "victim_of" in event.fields or "goes_on" in event.fields or _is_consequence(event.kind):
        return False
    return bool(event.fields.get("went_on")) or event.severity == "warning"


def _was_requeued(view: View, event: Event) -> bool:
    """Whether the scheduler preempted the job, and steps were logged after it."""
    preempted = re.search("PREEMPT|REQUEUE", str(event.fields.get("reason", ""))) is not None
    went_on = None not in (event.step, view.last_step) and event.step < view.last_step  # type: ignore[operator]
    return preempted and went_on and view.run.ended != "preempted"


def _is_consequence(kind: str) -> bool:
    """True for signatures of another process's failure: they get severity `info` next to the crash itself."""
    return kind in CATALOGUE and CATALOGUE[kind].role in ("victim", "wrapper")


def _unique(groups: list[list[Event]]) -> list[tuple[str, list[Event]]]:
    """The crashes as (kind, events), in the order of the log.

    A logger's line about an exception, and a copy of it in another file, are dropped for the traceback that has the
    line of the user's code.
    """
    kept: list[list[Event]] = []
    for group in sorted(groups, key=lambda events: "frame" not in events[0].fields):
        if not any(_same_crash(group[0], known[0]) for known in kept):
            kept.append(group)
    place = {id(group): i for i, group in enumerate(groups)}
    return [(group[0].kind, group) for group in sorted(kept, key=lambda group: place[id(group)])]


def _same_crash(event: Event, known: Event) -> bool:
    text = (str(known.fields.get("exception_message") or known.message).splitlines() or [""])[0]
    return event.kind == known.kind and event.step == known.step and event.rank == known.rank and text in event.message
