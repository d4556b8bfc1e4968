"""`postmortem check -- COMMAND`: runs the user's program in a sandbox, observes its first steps, and stops it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.driver import last_words, shut_in
from postmortem.core.blame import CheckResult
from postmortem.core.errors import ReplayError
from postmortem.silent.judge import judge, nonfinite_loss
from postmortem.silent.look import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_STARTING = 120.0
"""Seconds until the first step, which importing and reading of data may take."""
_OTHERS = 5.0
"""Seconds in which other ranks may come to their end after the first."""


def check(
    command: Sequence[str], *, steps: int, seconds: float, sandbox: str = "auto", offline: bool = True
) -> CheckResult:
    """Runs `command`, without effect on files, for so many optimizer steps or seconds, and judges what it did.

    Raises ReplayError where it cannot be started, or where no training was seen.
    """
    started = time.monotonic()
    session = launch.new_session()
    plan: dict[str, Any] = {"mode": "check", "look": {"steps": steps, "seconds": seconds}}
    with shut_in(command, session, plan, session, offline=offline, sandbox=sandbox) as launched:
        waiting = _Waiting(session / "silent", seconds)
        launched.wait(until=waiting.enough)
        code = launched.returncode if launched.ended else None
        (session / "done").touch()
        if launched.failed:
            raise ReplayError(launched.failed)
        answers = Answers(session)
        result = looked(session, command, time.monotonic() - started)
        if not result.steps:
            raise ReplayError(answers.unseen(code, last_words(session)))
    launched.remove()
    return result


def looked(session: Path, command: Sequence[str], seconds: float) -> CheckResult:
    """What the looks of a session show."""
    looks = read(session / "silent")
    faults, checks = judge(looks)
    return CheckResult(
        command=tuple(command),
        faults=tuple(faults),
        checks=tuple(checks),
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
