"""Turns an attempt into an answer: the culprit, or why none can be named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import shown
from postmortem.checkpoints.health import inspect
from postmortem.core.culprit import Culprit
from postmortem.core.errors import ReplayError
from postmortem.core.printable import listed
from postmortem.replay.attempts import INITIAL
from postmortem.replay.culprit.localize import localize
from postmortem.replay.onset import with_onset
from postmortem.replay.recipe.user_errors import describe
from postmortem.replay.rerun.determinism import Fault, run_again
from postmortem.replay.roll.fidelity import compare
from postmortem.replay.roll.level import leaps

if TYPE_CHECKING:
    from postmortem.replay.attempts import Attempt, Attempts
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.roll.sought import Sought

Judged = tuple[Culprit, bool]
"""A culprit, and whether the run could be judged at all."""


class ReplayVerdict:
    """Judges an attempt of `attempts`. fix: whether fixes are tried."""

    def __init__(self, attempts: Attempts, *, fix: bool) -> None:
        self.attempts, self.aim, self.fix = attempts, attempts.aim, fix

    def of(self, attempt: Attempt) -> Judged:
        """The culprit of the attempt. Raises ReplayError if the batches end before the last step to run."""
        done, fidelity = attempt.roll, attempt.fidelity
        trail = [f"reran steps {done.first} to {done.last} from {self.attempts.start}"]
        trail += self._other_than_asked(done)
        if fidelity.compared:
            trail.append(fidelity.note)
        log_ends = self.attempts.log_ends
        wanted = min([s for s in (self.aim.step, log_ends) if s is not None], default=done.last)
        if done.ended and done.fault is None and done.last < wanted:
            raise ReplayError(done.ended)
        fault = done.fault
        if fault is None and self.aim.failed:
            fault = done.overflow
        distrust = bool(fidelity.compared) and not fidelity.ok
        if self.aim.sought is not None and not distrust and (found := self._sought(attempt, self.aim.sought, trail)):
            return found, True
        if fault is not None:
            return self._failed(attempt, fault, trail, distrust=distrust)
        if done.diverged_at is None and self.aim.grows and not distrust:
            leapt = leaps([r.loss for r in done.results])
            done.diverged_at = done.first + leapt if leapt else None
        if done.diverged_at is not None and self.aim.failed:
            found = self._localize(attempt, Fault(done), trail)
            at = done.diverged_at if found.cause == "divergence" else found.step
            return replace(found, step=at), not distrust
        if self.aim.nonfinite:
            return self._not_reproduced(attempt, trail)
        return self._nothing_found(attempt, trail, distrust=distrust)

    def _sought(self, attempt: Attempt, sought: Sought, trail: list[str]) -> Culprit | None:
        """The culprit of a finding of finite values; None where no stage names one. What they saw is in `trail`."""
        runner = attempt.runner
        found = localize(runner.train_step, runner=runner, rolled=Fault(attempt.roll), fixes=self.fix, sought=sought)
        trail += found.how
        if found.cause == "none":
            return None
        found = replace(found, fidelity=attempt.fidelity, how=tuple(trail))
        return with_onset(found, self.attempts, attempt.first)

    def _failed(self, attempt: Attempt, fault: int, trail: list[str], *, distrust: bool) -> Judged:
        done = attempt.roll
        if distrust and not self._where_the_log_fails(attempt, fault):
            raised = "" if done.raised is None else f" ({describe('it', done.raised)})"
            other = "the replay does not reproduce the run, so no culprit is named"
            trail.append(f"the replay fails at step {fault}{raised}, but the log does not: {other}")
            return _unknown(attempt, trail, cause="none"), False
        again = run_again(attempt.runner, done, fault)
        trail.append(again.message)
        if again.transient:
            return _unknown(attempt, trail, cause="transient", step=fault, established="observed"), True
        found = self._localize(attempt, Fault(done, again), trail)
        return replace(found, step=fault), not distrust

    def _localize(self, attempt: Attempt, fault: Fault, trail: list[str]) -> Culprit:
        found = localize(attempt.runner.train_step, runner=attempt.runner, rolled=fault, fixes=self.fix)
        return replace(found, fidelity=attempt.fidelity, how=(*trail, *found.how))

    def _other_than_asked(self, done: Roll) -> list[str]:
        """A note if another step than the requested one was examined, or if the requested one is not in the log."""
        asked, fault, log_ends = self.aim.asked, done.fault, self.attempts.log_ends
        if asked is None:
            return []
        beyond = log_ends is not None and asked > log_ends
        request = f"step {asked} was requested"
        if beyond:
            request = f"step {asked} was requested, but the log ends at step {log_ends}"
        if fault is not None and fault < asked:
            return [f"{request}; step {fault}, before it, is the first that fails"]
        if done.last < asked:
            why = ", the end of the batches" if done.ended else ""
            return [f"{request}; replayed only up to step {done.last}{why}"]
        return [f"{request}; the steps after that cannot be compared with the log"] if beyond else []

    def _where_the_log_fails(self, attempt: Attempt, fault: int) -> bool:
        """True if the replay fails where the log becomes non-finite. It is then the same failure, although earlier
        losses differ (by noise whose random state was not saved)."""
        until = self.aim.step
        if until is None or not self.aim.nonfinite:
            return False
        losses = self.attempts.logged(attempt.runner, attempt.roll.results[0])
        finite = [s for found in losses.values() for loss in found for s in loss.values if s < until]
        return max(finite, default=attempt.first) <= fault <= until

    def _nothing_found(self, attempt: Attempt, trail: list[str], *, distrust: bool) -> Judged:
        if distrust:
            trail.append("no replayed step failed, but the losses do not match the log: nothing follows for the run")
            return _unknown(attempt, trail, cause="none"), False
        sought, last = self.aim.sought, attempt.roll.last
        if sought is None:
            trail.append(f"every loss, gradient and parameter is finite up to step {last}")
        else:
            what = f"the log shows {sought.name} at step {sought.step}"
            trail.append(f"{what}; every value is finite up to step {last}, and no cause was established")
        return _unknown(attempt, trail, cause="none", established="observed"), True

    def _not_reproduced(self, attempt: Attempt, trail: list[str]) -> Judged:
        """The log is non-finite, the replay is finite: the run continued from a bad checkpoint, or the failure was
        transient, or the replay does not reproduce the run."""
        attempts, step = self.attempts, self.aim.step
        trail = [line for line in trail if line != attempt.fidelity.note]
        before = [r for r in attempt.roll.results if r.step != step]
        results = attempt.roll.results
        logged = attempts.logged(attempt.runner, results[0]) if results else {}
        earlier = compare(before, logged, rounding=attempt.rounding)
        if earlier.compared and not earlier.ok:  # what such a replay does, the run need not have done
            return self._nothing_found(attempt, trail, distrust=True)
        for bad in self._bad_on_the_way(attempt.roll):
            finite = f"every step replayed from {_named(attempts.path)} is finite"
            trail.append(f"{finite}; the later checkpoint {bad.name} is not: replaying again from there")
            good, attempts.path = attempts.path, bad
            second = attempts.best_attempt()
            if second.roll.fault is not None:
                found, judged = self.of(second)
                attempt.fidelity, attempt.account = second.fidelity, second.account
                resume = f"resume from {_named(good)} instead"
                trail.append(f"the run continued from {bad.name}, which holds non-finite values: {resume}")
                return replace(found, how=(*trail, *found.how)), judged
            attempts.path = good
        if not earlier.ok:
            return self._nothing_found(attempt, trail, distrust=True)
        differs = "the log is non-finite and the replay is finite"
        trail.append(
            f"the replay matches the log up to step {step}, where {differs}: the failure did not recur "
            "(a hardware fault, a race condition, or something that the recipe does not rebuild)"
        )
        attempt.fidelity = replace(attempt.fidelity, note=f"{earlier.note}; at step {step} {differs}")
        return _unknown(attempt, trail, cause="transient", step=step), False

    def _bad_on_the_way(self, done: Roll) -> list[Path]:
        """Non-finite checkpoints of steps that were finite when replayed, newest first."""
        known = [c for c in self.attempts.checkpoints if c.step is not None and done.first <= c.step <= done.last]
        newest_first = [Path(c.path) for c in sorted(known, key=lambda c: -(c.step or 0))]
        return [path for path in newest_first if inspect(self.attempts.here / path).finite is False]


def _named(path: Path | None) -> str:
    return INITIAL if path is None else path.name


def with_bad_start(found: Culprit, start: Path, attempt: Attempt) -> Culprit:
    """The culprit, and the attempt's fidelity, with a note if the checkpoint `start` was saved with non-finite values.

    Such a checkpoint explains why the replay differs from the log. Unchanged if the replay matches the log.
    """
    fidelity = attempt.fidelity
    bad = [t.name for t in inspect(start).bad] if fidelity.compared and not fidelity.ok else []
    if not bad:
        return found
    note = f"the checkpoint {shown(start)} already holds non-finite values ({listed(bad)}), so the fault came before it"
    attempt.fidelity = replace(fidelity, reasons=(note,))
    return replace(found, fidelity=attempt.fidelity, how=(*found.how, note))


def _unknown(attempt: Attempt, trail: list[str], **fields: Any) -> Culprit:
    """A culprit without a phase."""
    return Culprit(phase="none", fidelity=attempt.fidelity, how=tuple(trail), **fields)
