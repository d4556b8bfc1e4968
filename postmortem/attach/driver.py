"""`postmortem replay RUN -- COMMAND` and `postmortem run -- COMMAND`: all stages in order. Runs in our own process.

The plan for the processes of the program is ``{"mode": "replay" | "run", "fix": bool, "on_fault": …}``. They answer by
files (`answers`), never by exit codes: shells, torchrun and accelerate each make their own of those.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from postmortem.attach import launch, stagnation
from postmortem.attach.answers import Answers
from postmortem.attach.growth import before_fault
from postmortem.attach.growth.by_log import with_cause_of_log
from postmortem.attach.growth.deaths import observed
from postmortem.attach.growth.explained import explained
from postmortem.attach.jumps import jump_of
from postmortem.attach.missing import check_given_paths
from postmortem.attach.noting import note_end, note_steps
from postmortem.attach.numbering import number_by_log
from postmortem.attach.other_settings import reasoned
from postmortem.attach.outcome import Outcome, never_began, sentence
from postmortem.attach.printed import ERRORS, OUTPUT, first_lines, last_words
from postmortem.attach.resumed import from_non_finite
from postmortem.attach.shadow import followed
from postmortem.attach.steps import matched
from postmortem.attach.tracing_again import trace_again
from postmortem.checkpoints.histories import note_log
from postmortem.core.errors import ReplayError
from postmortem.core.progress import STARTED, progressed
from postmortem.core.view import View
from postmortem.replay.roll.aim import aim_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postmortem.attach.answers import Process
    from postmortem.attach.growth.runs import Start
    from postmortem.checkpoints.histories import Level
    from postmortem.core.culprit import ReplayResult
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.replay.roll.aim import Aim

OnFault = Literal["continue", "skip", "stop"]


@dataclass(frozen=True, slots=True)
class Captures:
    """Where `watch` keeps captures: at most `keep`, and `most` bytes of them altogether."""

    folder: Path
    keep: int = 3
    most: int = 32 << 30


_LOOK = 0.4  # seconds between two comparisons with the log
_SILENT = 60.0  # seconds after a fault in which other ranks may answer
_UNLIKE = 32  # backward passes, or a few log intervals of them, none of which the log has: it will not follow
_LONG = 3.0  # seconds for an answer, after which it is told that a fault is examined
_SOON = 16  # steps after the requested one within which the log's own first non-finite value is gone to


def rerun(
    target: Path,
    command: Sequence[str],
    *,
    run: Run | None = None,
    report: RunReport | None = None,
    step: int | None = None,
    fix: bool = True,
    sandbox: str = "auto",
    offline: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
    fork: bool = True,
    looked: Callable[[Path], None] | None = None,
) -> ReplayResult:
    """Runs `command` again, shut in, up to the step at which `run` failed (or `step`), and names the culprit.

    progress: called with (ticks done, logged step). fork: whether its processes may be forked; where they cannot be,
    the command is run a second time, traced at the fault. looked: called with the folder of the session before it is
    removed. Raises ReplayError with the reason in one line.
    """
    check_given_paths(command)
    started = time.monotonic()
    view = View(run) if run is not None else None
    session = launch.new_session()
    start = partial(shut_in, command, target, offline=offline, sandbox=sandbox)
    plan: dict[str, Any] = {"mode": "replay", "fix": fix, "on_fault": "stop", "fork": fork}
    aim = _target(view, report, step)
    plan |= _of_finite(view, aim)
    with start(plan, session) as launched:
        logs = launched.logs_of(target)
        watching = _Rerun(Answers(session), view, aim, progress, logs)
        if "look" in plan:
            watching.looked = partial(observed, session)
        launched.wait(until=watching.enough)
        stopped = not launched.ended
        (session / "done").touch()
        if launched.failed:  # ended by the launcher: it would have filled the disk
            raise ReplayError(launched.failed)
        watching.answers.poll()
        denied(launched, watching.answers.at_fault())
        launched.stop()
        outcome = Outcome(str(target), tuple(command), watching.answers, view, launched.how, logs=logs)
        if not stopped and outcome.process is None:
            raise outcome.unseen(watching.answers.unseen(launched.returncode, last_words(session), command))
        process = outcome.process
        if process is not None and never_began(process, view):
            raise outcome.failed_early(process)
        if process is not None and process.again and process.culprit is None:
            trace_again(process, watching.answers, plan, start)
        result = outcome.of_rerun(watching.aim, stopped=stopped)
        if "look" in plan:
            mapping = matched(view, process.passes, process.rank)[0] if process is not None else None
            result = stagnation.explained(result, session, mapping, start)
        result = reasoned(result, run.config if run is not None else {}, command, first_lines(session))
        if outcome.process is not None:
            result = _further(result, outcome.process, outcome, watching.aim, report, start, fix=fix)
        if looked is not None:
            looked(session)
        launched.remove()
    return replace(result, seconds=time.monotonic() - started)


def _further(
    result: ReplayResult,
    process: Process,
    outcome: Outcome,
    aim: Aim,
    report: RunReport | None,
    start: Start,
    *,
    fix: bool,
) -> ReplayResult:
    """What the state that the command began with, or further runs of it, tell about a growth or a fault."""
    if _grows(aim, process):
        mapping, _ = matched(outcome.view, process.passes, process.rank)
        assert aim.sought is not None
        return explained(result, process, mapping, aim.sought, start, fixes=fix)
    if process.fault is None:
        return result
    result = from_non_finite(result, process, outcome.command, report)
    result = before_fault.tried(result, process, outcome.view, report, start, fixes=fix)
    return with_cause_of_log(result, report)


def _grows(aim: Aim, process: Process) -> bool:
    """Whether what is looked for is a growth or a jump of values that the rerun has as finite ones."""
    finite = process.fault is None or _is_jump(process)
    return aim.sought is not None and aim.sought.kind != "still" and not aim.nonfinite and finite


def _is_jump(process: Process) -> bool:
    return process.fault is not None and process.fault["what"] in ("jump", "gradient-jump")


def _of_finite(view: View | None, aim: Aim) -> dict[str, Any]:
    """What the plan says where the log has a finding of finite values."""
    if aim.sought is not None and aim.sought.kind == "still" and not aim.nonfinite:
        return {"look": stagnation.LOOK}
    jump = jump_of(view, aim.sought) if view is not None and aim.sought is not None and not aim.nonfinite else None
    return {"jump": asdict(jump)} if jump is not None else {}


def shut_in(
    command: Sequence[str], target: Path, plan: dict[str, Any], session: Path, *, offline: bool, sandbox: str
) -> launch.Launched:
    """Starts `command`, its output in two files of the session. Raises ReplayError where that cannot be done."""
    try:
        with (session / OUTPUT).open("wb") as out, (session / ERRORS).open("wb") as errors:
            launched = launch.start(
                command,
                plan,
                session=session,
                protect=[target],
                offline=offline,
                sandbox=sandbox,
                stdout=out.fileno(),
                stderr=errors.fileno(),
            )
    except launch.CannotProtect as error:
        raise ReplayError(str(error)) from error
    progressed(STARTED, 1)
    if launched.failed:
        with launched:
            raise ReplayError(launched.failed)
    return launched


def denied(launched: launch.Launched, process: Process | None) -> None:
    """Our protection is no fault of the program: where it only denies, the first write ends many a program."""
    told = process.raised if process is not None else None
    if launched.denies and told is not None and "Permission denied" in told["message"]:
        where = f" ({told['file']}:{told['line']})" if told["file"] else ""
        raise ReplayError(
            f"the program could not write to your files{where}: {launched.how}. `--sandbox none` lets it write"
        )


def _target(view: View | None, report: RunReport | None, asked: int | None) -> Aim:
    """As of a replay with a recipe; but where the log fails soon after the requested step, up to there."""
    aim = aim_at(view, report, asked)
    by_log = aim_at(view, report, None)
    if asked is not None and by_log.nonfinite and by_log.step is not None and asked < by_log.step <= asked + _SOON:
        return replace(by_log, asked=asked)
    return aim


class _Rerun:
    """Follows a rerun: `enough` is true once nothing more is to be expected of it."""

    def __init__(
        self,
        answers: Answers,
        view: View | None,
        aim: Aim,
        progress: Callable[[int, int | None], None] | None,
        logs: Sequence[Path] = (),
    ) -> None:
        self.answers, self.view, self.aim, self.progress, self.logs = answers, view, aim, progress, logs
        self.looked: Callable[[], bool] | None = None
        """Of a training that does not learn: enough was observed."""
        self._unlike = 0
        self._heard = self._looked = time.monotonic()

    def enough(self) -> bool:
        """A culprit is named, the step is passed without a fault, or the losses are not those of the log."""
        now = time.monotonic()
        self._heard = now if self.answers.poll() else self._heard
        trainers = self.answers.trainers
        if any(p.culprit is not None and p.culprit["culprit"].get("phase") != "none" for p in trainers):
            return True
        if any(p.fault is not None for p in trainers):
            answered = all(p.culprit is not None or p.unexamined for p in trainers if p.fault is not None)
            failed = [p.fault for p in trainers if p.fault is not None]
            if answered and len(failed) >= max(int(fault.get("of", 2)) for fault in failed):
                return True
            return answered and now - self._heard > _SILENT
        if now - self._looked < _LOOK:
            return False
        self._looked = now
        if trainers:
            return self._passed(max(trainers, key=lambda p: p.ticks))
        if self.progress is not None:
            self.progress(0, None)
        return False

    def _passed(self, process: Process) -> bool:
        others = self.answers.other_ranks(process)
        mapping, fidelity = matched(self.view, process.passes, process.rank, others, masked=self.aim.masked)
        done = mapping.last_whole(process.ticks) if mapping is not None else None
        if self.progress is not None:
            self.progress(process.ticks, done)
        if mapping is None:
            return bool(fidelity.reasons) and self._strays(process)
        if self.looked is not None and self.looked():
            return True
        if self.aim.asked is not None and mapping.first > self.aim.asked:
            return True
        return self.aim.step is not None and done is not None and done >= self.aim.step + self._beyond()

    def _strays(self, process: Process) -> bool:
        """None of so many losses is in the log, nor what the rerun logged itself. Asked again after as many more."""
        passes = len(process.passes)
        if passes <= self._unlike + _UNLIKE * self._interval():
            return False
        own = followed(self.view, self.logs, process.rank)
        self._unlike = passes
        return own is None or not own.same

    def _beyond(self) -> int:
        """Steps to go on after the aimed one. A log that ends without a non-finite value says nothing of what ended it:
        an exception in the step after the last one that it shows, or between two of its lines."""
        at_the_end = self.view is not None and self.aim.step == self.view.last_step
        open_end = self.aim.asked is None and not self.aim.nonfinite and at_the_end
        return max(self.aim.beyond, self._interval() + 1 if open_end else 0)

    def _interval(self) -> int:
        series = self.view.main("loss") if self.view is not None else None
        if series is None or len(series) < 2:
            return 1
        return max(1, int((series.step[-1] - series.step[0]) // (len(series) - 1)))


# ---- `postmortem run`


def watch(
    command: Sequence[str],
    *,
    on_fault: OnFault = "continue",
    fix: bool = True,
    output_to_stderr: bool = False,
    told: Callable[[ReplayResult], None] | None = None,
    noticed: Callable[[str], None] | None = None,
    captures: Captures | None = None,
    level: Level = "basic",
    history: Path | None = None,
    deferred: bool = False,
    look: dict[str, Any] | None = None,
    looked: Callable[[Path], None] | None = None,
) -> tuple[int, ReplayResult]:
    """Runs `command` for real, under watch. -> (its exit code, what was found).

    level: what is measured beside the flags; history: the folder into which that is written, below the program's
    working directory or anywhere. deferred: values are read ticks later on a CPU as well. output_to_stderr: the
    program's stdout goes to stderr. told: called once, at the first fault, as soon as it is answered, in another
    thread; noticed: in the same thread with a sentence, once a fault is seen that takes time to answer. captures: where
    captures go and how many are kept; None: none are written. look: the plan of `silent.observe`, if it is to observe
    as well; `looked` is then called with the folder of the session at the end. Raises ReplayError if the command
    cannot be started.
    """
    started, since = time.monotonic(), time.time()
    session = launch.new_session()
    plan: dict[str, Any] = {"mode": "run", "fix": fix, "on_fault": on_fault, "level": level, "deferred": deferred}
    if history is not None:
        plan["history"] = str(history)
    plan |= {"look": look} if look is not None else {}
    if captures is not None:
        plan["capture"] = {"folder": str(captures.folder.absolute()), "keep": captures.keep, "most": captures.most}
    try:
        watched = launch.watch(command, plan, session=session, stdout=2 if output_to_stderr else None)
    except OSError as error:
        raise ReplayError(f"{command[0]}: {error.strerror or error}") from error
    made = _made(captures.folder) if captures is not None else []
    answers, over = Answers(session), threading.Event()
    outcome = Outcome(str(Path.cwd()), tuple(command), answers, None, "")
    listener = threading.Thread(target=_listen, args=(answers, over, outcome, told, noticed, started), daemon=True)
    listener.start()
    outcome.code = code = watched.wait()
    over.set()
    listener.join()
    answers.poll()
    result = replace(outcome.of_watch(since), seconds=time.monotonic() - started)
    numbers = number_history(outcome, history) if history is not None else {}
    note_steps(result, outcome.log, history, numbers)
    if history is not None and history.is_dir():
        with suppress(OSError):  # a scan does not know then how the program ended
            note_end(outcome, history, numbers, stopped=on_fault == "stop")
    for folder in made:
        with suppress(OSError):  # it holds something
            folder.rmdir()
    if looked is not None:
        looked(session)
    shutil.rmtree(session, ignore_errors=True)
    return (code if code >= 0 else 128 - code), result


def _made(folder: Path) -> list[Path]:
    """Makes a folder, into which a request for a capture can be written -> those that were not there, the inner first;
    one that cannot be made is told once a capture is to be written."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return missing


def number_history(outcome: Outcome, history: Path) -> dict[int, int]:
    """Gives the rows of a history the steps of the log that the program wrote -> tick: step. ReplayError."""
    try:
        numbers = number_by_log(history, outcome.mapping)
        if history.is_dir():
            note_log(history, outcome.log if numbers else None)  # else their steps are not those of the log
    except OSError as error:
        raise ReplayError(f"{history}: {error.strerror or error}") from error
    return numbers


def _listen(
    answers: Answers,
    over: threading.Event,
    outcome: Outcome,
    told: Callable[[ReplayResult], None] | None,
    noticed: Callable[[str], None] | None,
    started: float,
) -> None:
    """Until the first fault is answered, which may be the last thing that the program did."""
    ended, since = False, 0.0
    while not ended:
        ended = over.wait(0.2)
        answers.poll()
        process = answers.at_fault()
        if process is not None and process.fault is not None and not ended:
            since = since or time.monotonic()
            if noticed is not None and time.monotonic() - since > _LONG:
                noticed(sentence(process))
                noticed = None
        if process is not None and (process.culprit is not None or process.unexamined):
            if told is not None:
                told(replace(outcome.of_watch(None), seconds=time.monotonic() - started))
            return
