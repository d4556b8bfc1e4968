"""`postmortem check -- COMMAND`: runs the user's program in a sandbox, observes its first steps, and stops it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.driver import shut_in
from postmortem.attach.printed import last_words
from postmortem.core.blame import Check, CheckResult
from postmortem.core.errors import ReplayError
from postmortem.silent.faults import FAULTS
from postmortem.silent.judge import judge, nonfinite_loss
from postmortem.silent.look import read
from postmortem.silent.measures import measures
from postmortem.silent.trials import LENGTHS, agree, outcome, overfitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_STARTING = 120.0
"""Seconds until the first step, which importing and reading of data may take."""
_OTHERS = 5.0
"""Seconds in which other ranks may come to their end after the first."""


def check(
    command: Sequence[str],
    *,
    steps: int,
    seconds: float,
    sandbox: str = "auto",
    offline: bool = True,
    tries: bool = True,
    begins: Callable[[str], None] | None = None,
) -> CheckResult:
    """Runs `command`, without effect on files, for so many optimizer steps or seconds, and judges what it did.

    tries: for faults that a change of torch's behaviour would cure, the command runs again with that change, each time
    as long as before and all together for at most `seconds`. Some of its first steps run again as well, to see whether
    two runs agree and whether one batch can be overfitted. begins: called with what each run of the command is for.

    Raises ReplayError where it cannot be started, or where no training was seen.
    """
    started, begins = time.monotonic(), begins or (lambda what: None)
    run = partial(_run, command, steps=steps, sandbox=sandbox, offline=offline)
    begins("the first steps are observed")
    with run(seconds=seconds) as (session, code):
        result = looked(session, command, time.monotonic() - started)
        if not result.steps:
            raise ReplayError(Answers(session).unseen(code, last_words(session)))
        looks = read(session / "silent")
    if not tries:
        return result
    faults = _tried(result.faults, looks, run, seconds, begins) if result.faults else ()
    checks = (*result.checks, *_checked(looks, command, seconds, begins, sandbox=sandbox, offline=offline))
    return replace(result, faults=faults, checks=checks, seconds=time.monotonic() - started)


def _checked(
    looks: Sequence[Look], command: Sequence[str], seconds: float, begins: Callable[[str], None], **how: Any
) -> list[Check]:
    """The lines of the checklist for which the command runs again."""
    until = time.monotonic() + seconds
    found = []
    for name, steps in LENGTHS.items():
        left = until - time.monotonic()
        try:
            if left < 1:
                raise ReplayError("the time for trials was over")
            begins(f"another run, for {name}")
            with _run(command, steps=steps, seconds=left, trial=name, **how) as (session, _):
                again, used = read(session / "silent"), (session / "used").exists()
            found.append(agree(looks, again) if name == "two-runs-agree" else overfitted(again, used=used))
        except ReplayError as error:
            found.append(Check(name, "not checked", str(error)))
    return found


def _tried(
    faults: Sequence[Blame],
    looks: Sequence[Look],
    run: Callable[..., Any],
    seconds: float,
    begins: Callable[[str], None],
) -> tuple[Blame, ...]:
    """The faults, each with what was tried against it."""
    until = time.monotonic() + seconds
    tried: dict[str, dict[str, Any]] = {}
    trials = {kind.name: kind.trial for kind in FAULTS if kind.trial is not None}
    for name in dict.fromkeys(fault.name for fault in faults if fault.name in trials):
        trial, left = trials[name], until - time.monotonic()
        if left < 1:
            tried[name] = {"what": trial.what, "cured": None, "why": "the time for trials was over"}
            continue
        begins(f"another run, with a change: {trial.what}")
        try:
            with run(seconds=left, trial=name) as (session, _):
                changed, used = read(session / "silent"), (session / "used").exists()
                again = next((c for c in judge(changed)[1] if c.name == name), None) if trial.by == "fault" else None
                tried[name] = outcome(trial, looks, changed, used=used, again=again)
        except ReplayError as error:
            tried[name] = {"what": trial.what, "cured": None, "why": str(error)}
    return tuple(replace(f, tried=(tried[f.name],)) if f.name in tried else f for f in faults)


@contextmanager
def _run(
    command: Sequence[str], *, steps: int, seconds: float, sandbox: str, offline: bool, **more: Any
) -> Iterator[tuple[Path, int | None]]:
    """Runs the command until enough was seen -> (the session, which is removed in the end; the exit code, None where
    the command was stopped)."""
    session = launch.new_session()
    plan: dict[str, Any] = {"mode": "check", "look": {"steps": steps, "seconds": seconds}, **more}
    with shut_in(command, session, plan, session, offline=offline, sandbox=sandbox) as launched:
        waiting = _Waiting(session / "silent", seconds)
        launched.wait(until=waiting.enough)
        code = launched.returncode if launched.ended else None
        (session / "done").touch()
        if launched.failed:
            raise ReplayError(launched.failed)
        yield session, code
    launched.remove()


def looked(session: Path, command: Sequence[str], seconds: float) -> CheckResult:
    """What the looks of a session show."""
    looks = read(session / "silent")
    faults, checks = judge(looks)
    return CheckResult(
        command=tuple(command),
        faults=tuple(faults),
        checks=(*checks, *measures(looks)),
        steps=max((look.steps for look in looks), default=0),
        seconds=seconds,
        notes=tuple(Answers(session).notes()),
        nonfinite=nonfinite_loss(looks),
    )


class _Waiting:
    """`enough`: every process that trains has seen enough, or the time is up."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._began = time.monotonic()
        self._first: float | None = None

    def enough(self) -> bool:
        """To be asked again and again."""
        now = time.monotonic()
        if now - self._began > self._seconds + _STARTING:
            return True
        if not self._folder.is_dir():
            return False
        over = {path.stem for path in self._folder.glob("*.over")}
        if not over:
            return False
        self._first = self._first or now
        return over >= {path.stem for path in self._folder.glob("*.jsonl")} or now - self._first > _OTHERS
