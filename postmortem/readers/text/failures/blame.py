"""How a run ended, and which of its failures is to blame for it.

Blame depends on the cause, not on the order of lines: a failure comes before a rank that waited, that before a
rank whose peer went away, that before what launchers and schedulers report about others. A failure after which training
continued or completed lost nothing; one after which the program reports that it continues is a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.readers.text.failures.fold import trained_on
from postmortem.readers.text.failures.progress import AFTER_COMPLETION

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.model import Ended
    from postmortem.readers.text.failures.fold import Failure
    from postmortem.readers.text.failures.progress import Completion, Progress
    from postmortem.signatures import Role

_IMPORTS = ("ImportError", "ModuleNotFoundError")
_PRINTED_ON = 10
"""Lines of other output after a failed import that show that it was caught."""
_OF_ANY_PROGRAM = ("generic-exception", "not-found")
"""Exceptions that no entry describes as one of a training."""
_SCHEDULER = ("slurm-cancelled", "slurm-time-limit", "slurm-preempted", "slurm-node-failure")
"""Slurm's reports that it ended the job, with a reason or without one."""
_EXPLAINED_BY = {
    "dl-worker-killed": {"dl-bus-shm", "slurm-oom-kill"},
    "host-kill": {"slurm-oom-kill", "pod-evicted"},
    "sigterm": {*_SCHEDULER, "preemption-notice", "pod-evicted"},
}
"""Failures, and the others that explain them, before or after: a worker died, and elsewhere the log says why."""
_BROKEN_DEVICE = ("xid", "gpu-lost", "ecc")
"""A GPU that broke: every call after it fails, also with an illegal access."""
_BY_THE_PROGRAM = (13, 31, 43, 45)
"""Xid numbers that report what the program did: the exception after them has the details."""
_FROM_OUTSIDE = ("sigterm", *_SCHEDULER)
"""What ended the run from outside; exceptions after it come from the shutdown."""
_GROUPS = ("ExceptionGroup", "BaseExceptionGroup")
_GUILT = {"cause": 3, "waiting": 2, "victim": 1, "wrapper": 0}


def blame(
    failures: list[Failure],
    progress: Progress,
    completed: Completion | None,
    *,
    attempts: int,
    cut: bool,
    went_back: Callable[[int], bool] = lambda line: False,
) -> Ended | None:
    """Decides which failure ended the run, sets `severity` and `victim_of` of all, and returns how the run ended.

    `progress` is the output of the whole log, `completed` the line that reports a completed training, `attempts` how
    often the job was started again, `cut` whether the last line is incomplete. `went_back(line)`: True if, after
    `line`, steps are repeated and then exceeded. That means a new process; flushed output of the old one would continue
    instead. Returns None if the text does not show how the run ended.
    """
    if completed is not None and progress.training - completed.training > AFTER_COMPLETION:
        completed = None
    lost = _lost(failures, progress, completed, attempts, went_back)
    if not lost:
        if completed is not None:
            return "completed"
        return "cut" if cut else None
    if (stopped := _shut_down(failures, lost)) is not None:
        return _ended(stopped)
    root = _root(lost)
    if _without_reason(root):
        root.severity = "info"  # scancel: somebody stopped it
    for failure in lost:
        if failure is not root and _is_victim(failure, root):
            failure.severity = "info"
            failure.victim_of = root
    return _ended(root)


def _lost(
    failures: list[Failure],
    progress: Progress,
    completed: Completion | None,
    attempts: int,
    went_back: Callable[[int], bool],
) -> list[Failure]:
    """The failures that may have ended the run; the severity of the others is lowered."""
    errors = [f for f in failures if f.severity == "error" and not _is_import(f)]
    roles = {f.signature.role for f in errors}
    failed = (f.last.attempt for f in failures if f.signature.severity == "error" and f.signature.role != "note")
    last_attempt = max(failed, default=0)
    lost: list[Failure] = []
    for failure in failures:
        stopped = failure.signature.ended in ("interrupted", "preempted") and "ignored" not in failure.fields
        if failure.severity != "error" and not stopped:
            continue
        survived = (
            _survived(failure, progress, completed, attempts)
            or went_back(failure.last.line)
            or _is_optional(failure, progress, roles)
        )
        if failure.severity != "error":
            if not survived:
                lost.append(failure)
        elif survived:
            failure.severity = "info"
            failure.fields["went_on"] = True
        elif failure.first.in_request and failure.last.in_request:
            failure.severity = "info"
            failure.fields["goes_on"] = "a web server was handling a request"
        elif failure.last.goes_on is not None:
            failure.severity = "warning"
            failure.fields["goes_on"] = failure.last.goes_on.message[:300]
        elif failure.last.attempt < last_attempt:
            failure.severity = "warning"  # the job was started again in the same file; the last attempt decides
        else:
            usual = failure.signature.id in _OF_ANY_PROGRAM and failure.first.exception
            if usual and not _died(failure) and _printed_on(failure, progress):
                failure.fields["printed_on"] = True  # whether that matters depends on what the log holds otherwise
            lost.append(failure)
    return lost


def _shut_down(failures: list[Failure], lost: list[Failure]) -> Failure | None:
    """The Ctrl-C that ended the run, if nothing else was lost than a traceback without its last line after it: one of
    those that a program prints while it is shut down, cut by its end."""
    stopped = next((f for f in reversed(failures) if _by_hand(f)), None)
    if stopped is None:
        return None
    at, attempt = stopped.first.line, stopped.last.attempt
    if not all(f.fields.get("cut") and f.first.line > at and f.first.attempt == attempt for f in lost):
        return None
    for failure in lost:
        failure.severity = "info"
    return stopped


def _survived(failure: Failure, progress: Progress, completed: Completion | None, attempts: int) -> bool:
    """Whether training continued after a failure, or completed."""
    last = failure.last
    if completed is not None and last.attempt < attempts and completed.line > last.line:
        return True
    if completed is not None and failure.signature.ended != "interrupted":
        by_script = _died(failure) and not completed.once and completed.training == last.training
        if completed.line > last.line and not by_script:
            return True
        harmless = failure.signature.role != "cause" or failure.first.in_thread
        if harmless and failure.first.training - completed.training < AFTER_COMPLETION:
            return True  # trouble while a finished training was taken down
    if last.attempt < attempts and progress.training > last.training:
        return True  # a new process trained: not what the buffer of the old one held
    return trained_on(failure, progress.training) > 0


def _died(failure: Failure) -> bool:
    """Whether its process cannot have continued: a "job finished" after it comes from the script around it."""
    deadly = failure.signature.ended == "killed" or failure.signature.id in ("segv", "heap-corruption")
    return failure.last.uncaught or deadly


def _is_optional(failure: Failure, progress: Progress, roles: set[Role]) -> bool:
    """Whether an import failed that the program can do without: it kept printing, and no death is reported."""
    return _is_import(failure) and _printed_on(failure, progress) and ("wrapper" not in roles or "cause" in roles)


def _printed_on(failure: Failure, progress: Progress) -> bool:
    return progress.ordinary - failure.last.ordinary >= _PRINTED_ON


def _is_import(failure: Failure) -> bool:
    return failure.first.exception.rpartition(".")[2] in _IMPORTS


def _root(lost: list[Failure]) -> Failure:
    """The failure to blame: the first that failed by itself or waited in vain, else the first victim, else a report."""
    kinds = {f.signature.id for f in lost}
    exits = [f.first.line for f in lost if f.signature.id == "srun-exit" and "how" in f.fields and not _was_stopped(f)]
    if exits:
        lost = [f for f in lost if not (_without_reason(f) and f.first.line > min(exits))]
    own = [f for f in lost if _guilt(f) >= 2 and not kinds & _EXPLAINED_BY.get(f.signature.id, set())]
    if own:
        first = min(own, key=lambda f: f.first.first_line)
        awaited = set(first.fields.get("suspects", ())) if _guilt(first) == 2 else set()
        failed = (f for f in own if _guilt(f) == 3 and f.first.exception and awaited.intersection(f.ranks))
        return next(failed, first)  # the others only report that they waited for the rank that failed
    if (silent := _silent_root(lost)) is not None:
        return silent
    return max(lost, key=lambda f: (_guilt(f), not _was_stopped(f), -f.first.first_line))


def _silent_root(lost: list[Failure]) -> Failure | None:
    """The launcher's report of a first failed rank that printed nothing itself, where all others are its victims."""
    victims = [f for f in lost if _guilt(f) == 1]
    if not all(f.ranks for f in victims):
        return None
    known = {rank for f in victims for rank in f.ranks}
    for failure in lost:
        rank = failure.fields.get("root_rank", -1)
        if rank >= 0 and rank not in known:
            failure.first.rank = rank
            return failure
    return None


def _without_reason(failure: Failure) -> bool:
    """True for a CANCELLED line without a reason, which Slurm prints after a task has already failed, or by scancel."""
    return failure.signature.id == "slurm-cancelled" and "reason" not in failure.fields


def _was_stopped(failure: Failure) -> bool:
    """Whether a launcher reports that it stopped its processes."""
    return failure.fields.get("how") == "Terminated" or failure.fields.get("exitcode") in (-15, 143)


def _guilt(failure: Failure) -> int:
    """How much a failure is to blame, by the role of its signature: 3 for a cause, 0 for a report about others."""
    if failure.fields.get("signal") in ("Terminated", "Aborted", "SIGABRT") or "gone" in failure.fields:
        return 1  # ended with the others; the end of a chain; its peer went away
    if failure.signature.rank == 0 and failure.first.exception.rpartition(".")[2] in _GROUPS:
        return 0  # the exceptions in the group are printed below it, each with its own traceback
    if failure.signature.role == "note" and failure.first.exception and failure.severity == "error":
        return _GUILT["cause"]  # only a note as a line, but as an exception it ended the program
    return _GUILT.get(failure.signature.role, 0)


def _is_victim(failure: Failure, root: Failure) -> bool:
    """Whether a failure follows from `root`.

    It does if it is less to blame, explained by it, or later than what ended the run from outside.
    """
    kind, guilt = failure.signature.id, _guilt(failure)
    if root.signature.id in _EXPLAINED_BY.get(kind, ()) or guilt < _guilt(root) or guilt <= 1:
        return True
    later = failure.first.line > root.first.line
    if root.signature.id in _FROM_OUTSIDE:
        return later
    if root.signature.id in _BROKEN_DEVICE and kind in (*_BROKEN_DEVICE, "illegal-access"):
        return later and root is not failure and root.fields.get("xid") not in _BY_THE_PROGRAM
    return later and guilt == 2 and kind not in (root.signature.id, "nccl-desync")


def _ended(root: Failure) -> Ended:
    """How a run ended whose root is this failure."""
    kind, fields = root.signature.id, root.fields
    if kind == "slurm-cancelled":
        return "crashed" if fields.get("reason") else "interrupted"
    if kind == "sigterm":
        return "interrupted" if _by_hand(root) else "killed"
    if kind == "srun-exit" and fields.get("how") == "Out Of Memory":
        return "out-of-memory"
    killed = fields.get("how") == "Killed" or fields.get("exitcode") in (-9, 137) or _was_stopped(root)
    if killed and kind in ("srun-exit", "elastic-child-failed"):
        return "killed"
    if fields.get("cut"):
        return "cut"
    return root.signature.ended or "crashed"


def _by_hand(root: Failure) -> bool:
    """Whether a signal comes from Ctrl-C."""
    return (
        root.first.exception.endswith("KeyboardInterrupt")
        or root.fields.get("number") == 2
        or str(root.fields.get("signal")).upper() == "SIGINT"
        or "by_hand" in root.fields
        or root.fields.get("exception") == "KeyboardInterrupt"
    )
