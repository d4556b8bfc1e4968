"""`postmortem check -- COMMAND`: runs the user's program in a sandbox, observes its first steps, and stops it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.driver import shut_in
from postmortem.attach.missing import check_given_paths
from postmortem.attach.printed import last_words
from postmortem.core.blame import ENOUGH, Check, CheckResult
from postmortem.core.errors import ReplayError
from postmortem.silent.faults import FAULTS
from postmortem.silent.judge import judge, learns_nothing, nonfinite_loss
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
_SLOWER = 0.5
"""So much more of the time until the first step may another run take."""
_OTHERS = 5.0
"""Seconds in which other ranks may come to their end after the first."""
_ENDING = 30.0
"""Seconds in which the command may end after its processes: the interpreter takes torch down, a launcher its ranks."""


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
    """Runs `command`, without effect on files, for so many optimizer steps, or seconds after the first of them, and
    judges what it did. Where it makes too few steps to judge, that is said, and nothing passes for ok.

    tries: for faults that a change of torch's behaviour would cure, the command runs again with that change, each time
    as long as before and all together for at most `seconds`, its starts included. Some of its first steps run again as
    well, to see whether two runs agree and whether one batch can be overfitted, for as long at most. begins: called
    with what each run of the command is for.

    Raises ReplayError where it cannot be started, or where no training was seen.
    """
    check_given_paths(command)
    started, begins = time.monotonic(), begins or (lambda what: None)
    run = partial(_run, command, steps=steps, sandbox=sandbox, offline=offline)
    begins("the command runs, and its first steps are observed")
    with run(seconds=seconds) as ran:
        looks = ran.looks
        result = looked(ran.session, command, time.monotonic() - started, looks)
        if not result.steps:
            told = Answers(ran.session).unseen(ran.code, last_words(ran.session), command)
            raise ReplayError(told + (f", after {time.monotonic() - started:.0f} s" if ran.code is None else ""))
        result = replace(result, failed=Answers.failure(ran.code, last_words(ran.session)))
    if result.too_few and not result.failed:
        result = replace(result, notes=(*result.notes, _why_few(ran, seconds, steps)))
    if not tries or (result.too_few and not result.faults):
        return result
    faults, unchanged = _tried(result.faults, looks, run, (seconds, ran.start), begins)
    again = partial(_run, command, sandbox=sandbox, offline=offline)
    checks = (*result.checks, *_checked(looks, unchanged, again, (seconds, ran.start), begins))
    return replace(result, faults=faults, checks=checks, seconds=time.monotonic() - started)


def _why_few(ran: _Ran, seconds: float, steps: int) -> str:
    if ran.code is not None:
        return f"the command ended with exit code {ran.code} before it had made {ENOUGH} optimizer steps"
    if steps < ENOUGH:
        return f"it was stopped after --steps {steps}: give {ENOUGH} or more"
    return (
        f"it was stopped {seconds:.0f} s after its first step, which it made after {ran.start:.0f} s: raise --seconds"
    )


def _left(until: float, start: float) -> dict[str, float]:
    """What another run may take of the time for trials."""
    left = until - time.monotonic() - start
    if left < 1:
        raise ReplayError(f"the time for trials was over (the program takes {start:.0f} s until its first step)")
    return {"seconds": left, "starting": start * (1 + _SLOWER)}


def _checked(
    looks: Sequence[Look],
    unchanged: Sequence[Look] | None,
    run: Callable[..., Any],
    time_for: tuple[float, float],
    begins: Callable[[str], None],
) -> list[Check]:
    """The lines of the checklist for which the command runs again, as seldom as that can be: a run that was to be
    changed and was not is a second run. unchanged: of such a one. time_for: all of it, and its start each time."""
    until = time.monotonic() + time_for[0]
    found = []
    for name, steps in LENGTHS.items():
        if name == "two-runs-agree" and unchanged:
            found.append(agree(looks, unchanged))
            continue
        try:
            left = _left(until, time_for[1])
            begins(f"the command runs again, for {name} ({steps} steps at most)")
            with run(steps=steps, trial=name, **left) as ran:
                found.append(
                    agree(looks, ran.looks) if name == "two-runs-agree" else overfitted(ran.looks, used=ran.used)
                )
                unchanged = unchanged or ran.unchanged
        except ReplayError as error:
            found.append(Check(name, "not checked", str(error)))
    return found


def _tried(
    faults: Sequence[Blame],
    looks: Sequence[Look],
    run: Callable[..., Any],
    time_for: tuple[float, float],
    begins: Callable[[str], None],
) -> tuple[tuple[Blame, ...], Sequence[Look] | None]:
    """The faults, each with what was tried against it, and what a run shows whose change had no effect."""
    until = time.monotonic() + time_for[0]
    tried: dict[str, dict[str, Any]] = {}
    unchanged: Sequence[Look] | None = None
    trials = {kind.name: kind.trial for kind in FAULTS if kind.trial is not None}
    for name in dict.fromkeys(fault.name for fault in faults if fault.name in trials):
        trial = trials[name]
        try:
            left = _left(until, time_for[1])
            begins(f"the command runs again, with a change: {trial.what}")
            with run(trial=name, **left) as ran:
                again = next((c for c in judge(ran.looks)[1] if c.name == name), None) if trial.by == "fault" else None
                tried[name] = outcome(trial, looks, ran.looks, used=ran.used, again=again)
                unchanged = unchanged or ran.unchanged
        except ReplayError as error:
            tried[name] = {"what": trial.what, "cured": None, "why": str(error)}
    return tuple(replace(f, tried=(tried[f.name],)) if f.name in tried else f for f in faults), unchanged


class _Ran(NamedTuple):
    """A run of the command. session: removed in the end. code: its exit code, None where it was stopped. start: seconds
    until its first optimizer step. looks: what was observed. used: the change that was to be tried had an effect."""

    session: Path
    code: int | None
    start: float
    looks: list[Look]
    used: bool

    @property
    def unchanged(self) -> list[Look] | None:
        """What was observed, of a run like the first one."""
        return None if self.used else self.looks


@contextmanager
def _run(
    command: Sequence[str],
    *,
    steps: int,
    seconds: float,
    sandbox: str,
    offline: bool,
    starting: float = _STARTING,
    **more: Any,
) -> Iterator[_Ran]:
    """Runs the command until enough was seen."""
    session = launch.new_session()
    plan: dict[str, Any] = {"mode": "check", "look": {"steps": steps, "seconds": seconds}, **more}
    with shut_in(command, session, plan, session, offline=offline, sandbox=sandbox) as launched:
        waiting = _Waiting(session / "silent", seconds + starting)
        launched.wait(until=waiting.enough)
        if waiting.all_ended():
            launched.wait(timeout=_ENDING)  # it ends by itself: its exit code tells whether it failed
        code = launched.returncode if launched.ended else None
        (session / "done").touch()
        if launched.failed:
            raise ReplayError(launched.failed)
        yield _Ran(session, code, waiting.start, read(session / "silent"), (session / "used").exists())
    launched.remove()


def looked(session: Path, command: Sequence[str], seconds: float, looks: Sequence[Look] | None = None) -> CheckResult:
    """What the looks of a session show. looks: where they were read already."""
    looks = read(session / "silent") if looks is None else looks
    faults, checks = judge(looks)
    steps = max((look.steps for look in looks), default=0)
    if 0 < steps < ENOUGH:  # what shows nothing wrong in them may do so later
        few = f"too few optimizer steps were seen: {steps}, and {ENOUGH} are needed"
        checks = [replace(c, status="not checked", detail=few) if c.status == "ok" else c for c in checks]
    nothing = None if faults else learns_nothing(looks)
    return CheckResult(
        command=tuple(command),
        faults=tuple(faults),
        checks=(*checks, *measures(looks)),
        steps=steps,
        seconds=seconds,
        notes=(*Answers(session).notes(), *([nothing] if nothing else [])),
        nonfinite=nonfinite_loss(looks),
    )


class _Waiting:
    """`enough`: every process that trains has seen enough, or the time is up. start: seconds until the first step was
    recorded, or until now."""

    def __init__(self, folder: Path, most: float) -> None:
        self._folder, self._most = folder, most
        self._began = time.monotonic()
        self._first: float | None = None
        self._seen = False
        self.start = 0.0

    def enough(self) -> bool:
        """To be asked again and again."""
        now = time.monotonic()
        told = {path.stem for path in self._folder.glob("*.jsonl")} if self._folder.is_dir() else set()
        if not self._seen:
            self.start, self._seen = now - self._began, bool(told)
        if now - self._began > self._most:
            return True
        over = {path.stem for path in self._folder.glob("*.over")} if told else set()
        if not over:
            return False
        self._first = self._first or now
        return over >= told or now - self._first > _OTHERS

    def all_ended(self) -> bool:
        """Every process that trained and is observed no longer has come to its end by itself."""
        over, ended = ({path.stem for path in self._folder.glob(f"*.{kind}")} for kind in ("over", "ended"))
        return bool(over) and over == ended
