"""How a run ended, and which of its failures is to blame for it.

By cause, not by time of printing: a failure of its own beats a rank that waited, that beats a rank whose peer went
away, that beats what launchers and schedulers report about others. A failure after which training went on, or
completed, lost nothing; one after which the program says that it goes on is a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.readers.text.failures.fold import trained_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.model import Ended
    from postmortem.readers.text.failures.fold import Failure
    from postmortem.signatures import Role

STRONG = re.compile(r"`?Trainer\.fit`? stopped|train_runtime|\[after training is done\]|exits successfully")
"""Said once, at the end of a training, and not at the end of each epoch."""
COMPLETED = (
    r"`?Trainer\.fit`? stopped: `?max_\w+=",
    r"['\"]train_runtime['\"]: ",
    r"(?i:\b(?:training|train|fine-?tuning|run|job) (?:is |has |was )?(?:successfully )?(?:completed?|finished|done|ended)\b)",
    r"(?i:\b(?:completed|finished|done) (?:with )?(?:the )?train(?:ing)?\b)",
    r"\[after training is done\]",
    r"Process \d+ exits successfully|^# Ended \(code 0\)",
    r"Training time \d|Total training time: ",
    r"\bepochs completed in [\d.]+ hours",
    r"(?i:\bexit(?:ed)?(?: with)?[ _]?(?:code|status)\W{1,3}0\b)",
    r"\bFinal \w{1,80} score: ",
    r"(?i:\bearly stopping (?:triggered|activated|in effect|condition|criterion|at epoch|at step|at iteration)|\bstopping early\b)",
    r"(?i:(?:^\W{0,4}|: )early stopping[.!]*\s*$|\bearly stopping, best\b)|\bStopping\. Best iteration|Signaling Trainer to stop",
)
"""What frameworks print when a training ran to its end."""

COMPLETED_ANCHORS = (
    *("Trainer.fit", "train_runtime", "omplete", "inished", "done", "Done", "DONE", "ended", "exits successfully", "Training time"),
    *("raining time", "code", "status", "COMPLETE", "FINISHED", " score: ", "arly stopping", "topping early", "Early Stopping"),
    *("Stopping. Best", "Trainer to stop", "# Ended (code"),
)
"""Plain texts one of which stands in whatever `COMPLETED` matches."""

_IMPORTS = ("ImportError", "ModuleNotFoundError")
_TALKED_ON = 10
"""Lines of other output after a failed import that show that it was caught."""
AFTER_COMPLETION = 20_000
"""Bytes of progress after a completion line from which on it belonged to an earlier part of the job."""
_TOLD_BY = {
    "dl-worker-killed": {"dl-bus-shm", "slurm-oom-kill"},
    "host-kill": {"slurm-oom-kill", "pod-evicted"},
    "sigterm": {"slurm-cancelled", "slurm-time-limit", "preemption-notice", "pod-evicted"},
}
"""Failures that others explain wherever these stand: the log says that a worker died, and elsewhere why."""
_DEVICE = ("xid", "gpu-lost", "ecc", "illegal-access")
_BY_THE_PROGRAM = (13, 31, 43, 45)
"""Xid numbers that report what the program did: the exception behind them says more."""
_FROM_OUTSIDE = ("sigterm", "slurm-cancelled", "slurm-time-limit")
"""What ended the run from outside; exceptions after it come from the shutdown."""
_GROUPS = ("ExceptionGroup", "BaseExceptionGroup")
_BLAME = {"cause": 3, "waiting": 2, "victim": 1, "wrapper": 0}


@dataclass(slots=True)
class Completion:
    """A line that says that the training is complete, at its last appearance; `progress` in bytes before it.

    `plain`: it is only said at the end. `repeated`: it came several times, far apart.
    """

    line: int
    progress: int
    plain: bool
    repeated: bool = False

    def again(self, line: int, progress: int) -> None:
        self.repeated = self.repeated or line - self.line > 20
        self.line, self.progress = line, progress


def judge(
    failures: list[Failure],
    progress: int,
    ordinary: int,
    completed: Completion | None,
    *,
    attempts: int,
    cut: bool,
    went_back: Callable[[int], bool] = lambda line: False,
) -> Ended | None:
    """Sets `severity` and `victim_of` of the failures and says how the run ended; None where the text does not tell.

    `progress` is the bytes of training in all, `ordinary` the lines of other output, `completed` the line that says that the training is complete,
    `attempts` how often the job was started again, `cut` whether the last line is incomplete, `went_back` whether behind a
    line the training did steps again and went on: a new process, as what a buffer held goes on where it was.
    """
    if completed is not None and progress - completed.progress > AFTER_COMPLETION:
        completed = None
    last_attempt = max((f.last.attempt for f in failures if f.signature.severity == "error" and f.signature.role != "note"), default=0)
    told = {f.signature.role for f in failures if f.severity == "error" and not _is_import(f)}
    lost: list[Failure] = []
    for failure in failures:
        survived = _survived(failure, progress, completed, attempts) or went_back(failure.last.line) or _optional(failure, ordinary, told)
        if failure.severity == "error" and survived:
            failure.severity = "info"
            failure.fields["went_on"] = True
        elif failure.severity == "error" and failure.last.goes_on is not None:
            failure.severity = "warning"
            failure.fields["goes_on"] = failure.last.goes_on.message[:300]
        elif failure.severity == "error" and failure.last.attempt < last_attempt:
            failure.severity = "warning"  # the job was started again in the same file; the last attempt decides
        elif failure.severity == "error" or (
            failure.signature.ended in ("interrupted", "preempted") and not survived and "ignored" not in failure.fields
        ):
            lost.append(failure)
    if not lost:
        if completed is not None:
            return "completed"
        return "cut" if cut else None
    root = _root(lost)
    if _cleared_up(root):
        root.severity = "info"  # scancel: somebody stopped it
    for failure in lost:
        if failure is not root and _is_victim(failure, root):
            failure.severity = "info"
            failure.victim_of = root
    return _ended(root)


def _survived(failure: Failure, progress: int, completed: Completion | None, attempts: int) -> bool:
    """Whether training went on after it, or completed."""
    if completed is not None and failure.signature.ended != "interrupted":
        if completed.line > failure.last.line and not (_died(failure) and not completed.plain and completed.progress == failure.last.progress):
            return True
        if failure.signature.role != "cause" and failure.first.progress - completed.progress < AFTER_COMPLETION:
            return True  # trouble while a finished training was taken down
    if failure.last.attempt < attempts and progress > failure.last.progress:
        return True  # a new process trained: not what the buffer of the old one held
    return trained_on(failure, progress) > 0


def _died(failure: Failure) -> bool:
    """Whether its process cannot have gone on: "job finished" behind it comes from the script around."""
    return failure.last.uncaught or failure.signature.ended == "killed" or failure.signature.id in ("segv", "heap-corruption")


def _optional(failure: Failure, ordinary: int, told: set[Role]) -> bool:
    """Whether an import failed that the program can do without: it went on talking, and nobody reports its death."""
    return _is_import(failure) and ordinary - failure.last.ordinary >= _TALKED_ON and ("wrapper" not in told or "cause" in told)


def _is_import(failure: Failure) -> bool:
    return failure.first.exception.rpartition(".")[2] in _IMPORTS


def _root(lost: list[Failure]) -> Failure:
    """The failure to blame: the first that failed by itself or waited in vain, else the first victim, else a report."""
    told = {f.signature.id for f in lost}
    reported = [f.first.line for f in lost if f.signature.id == "srun-exit" and "how" in f.fields and not _with_the_rest(f)]
    lost = [f for f in lost if not (reported and _cleared_up(f) and f.first.line > min(reported))]
    own = [f for f in lost if _blame(f) >= 2 and not told & _TOLD_BY.get(f.signature.id, set())]
    if own:
        return min(own, key=lambda f: f.first.first_line)
    victims = [f for f in lost if _blame(f) == 1]
    known = {rank for f in victims for rank in f.ranks}
    silent = [f for f in lost if f.fields.get("root_rank", -1) >= 0 and f.fields["root_rank"] not in known and all(v.ranks for v in victims)]
    if silent:  # the launcher names a rank that said nothing itself, and the others only say that it is gone
        silent[0].first.rank = silent[0].fields["root_rank"]
        return silent[0]
    return max(lost, key=lambda f: (_blame(f), not _with_the_rest(f), -f.first.first_line))


def _cleared_up(failure: Failure) -> bool:
    """Whether Slurm says without a reason that it cancelled: behind the failure of a task that is a consequence of it."""
    return failure.signature.id == "slurm-cancelled" and "reason" not in failure.fields


def _with_the_rest(failure: Failure) -> bool:
    """Whether a launcher says that its processes were told to stop."""
    return failure.fields.get("how") == "Terminated" or failure.fields.get("exitcode") in (-15, 143)


def _blame(failure: Failure) -> int:
    if failure.fields.get("signal") in ("Terminated", "Aborted", "SIGABRT") or "gone" in failure.fields:
        return 1  # ended with the rest; the end of a chain; the peer was there and is not
    if failure.signature.rank == 0 and failure.first.exception.rpartition(".")[2] in _GROUPS:
        return 0  # what it holds stands below it, each with a traceback of its own
    if failure.signature.role == "note" and failure.first.exception and failure.severity == "error":
        return _BLAME["cause"]  # what is only a note in a line ended the program as an exception
    return _BLAME.get(failure.signature.role, 0)


def _is_victim(failure: Failure, root: Failure) -> bool:
    """Whether a failure follows from `root`: less to blame, explained by it, or later than what ended the run from outside."""
    if root.signature.id in _TOLD_BY.get(failure.signature.id, ()) or _blame(failure) < _blame(root) or _blame(failure) <= 1:
        return True
    later = failure.first.line > root.first.line
    if root.signature.id in _FROM_OUTSIDE:
        return later
    if root.signature.id in _DEVICE[:3] and failure.signature.id in _DEVICE:  # a GPU that broke fails every call behind it
        return later and root is not failure and root.fields.get("xid") not in _BY_THE_PROGRAM
    return later and _blame(failure) == 2 and failure.signature.id not in (root.signature.id, "nccl-desync")


def _ended(root: Failure) -> Ended:
    if root.signature.id == "slurm-cancelled":
        reason = str(root.fields.get("reason", ""))
        if "PREEMPT" in reason or "REQUEUE" in reason:
            return "preempted"
        return "crashed" if reason else "interrupted"
    if root.signature.id == "sigterm":
        by_hand = root.first.exception.endswith("KeyboardInterrupt") or root.fields.get("number") == 2 or root.fields.get("signal") == "SIGINT"
        return "interrupted" if by_hand or root.fields.get("exception") == "KeyboardInterrupt" else "killed"
    if root.signature.id == "srun-exit" and root.fields.get("how") == "Out Of Memory":
        return "out-of-memory"
    killed = root.fields.get("how") == "Killed" or root.fields.get("exitcode") in (-9, 137) or _with_the_rest(root)
    if killed and root.signature.id in ("srun-exit", "elastic-child-failed"):
        return "killed"
    if root.fields.get("cut"):
        return "cut"
    return root.signature.ended or "crashed"
