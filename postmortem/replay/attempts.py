"""Rolls forward from a checkpoint, in the numbering and with the learning rate that follow the log, and judges what that shows."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.content import Saved, read_saved
from postmortem.checkpoints.find import shown
from postmortem.checkpoints.health import inspect
from postmortem.core.culprit import Culprit, Fidelity
from postmortem.replay.culprit.localize import localize
from postmortem.replay.model import Context
from postmortem.replay.recipe.load import Recipe, describe, out_of_memory, user_frames
from postmortem.replay.recipe.user_errors import one_line
from postmortem.replay.rerun import determinism as repeat
from postmortem.replay.roll.fidelity import LoggedLoss, compare, logged_losses
from postmortem.replay.roll.restore import NO_RANDOM_STATE, Account, load_saved
from postmortem.replay.roll.roll import Roll, leaps, roll
from postmortem.replay.step.runner import ReplayError, StepResult, StepRunner
from postmortem.replay.step.state import Rng

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from postmortem.core.view import View
    from postmortem.replay.roll.aim import Aim

    Progress = Callable[[int, int, StepResult], None]

_NEXT_FIRST = ("iter_num", "iter", "next_step", "start_step")  # keys that say the step to come; the others the last one done
_RUN_ON = 200  # steps to run past the fault, to see whether the log shows it as the replay does
_UNLOGGED_LIMIT = 1000  # steps to roll where no log vouches for them


@dataclass(slots=True)
class Attempt:
    """Steps that were rolled forward from the checkpoint, and how well their losses agree with the log."""

    runner: StepRunner
    account: Account
    roll: Roll
    fidelity: Fidelity
    first: int


class Attempts:
    """One replay: its attempts, what they share, and the culprit of the best of them."""

    def __init__(
        self,
        recipe: Recipe,
        path: Path,
        device: torch.device,
        view: View | None,
        aim: Aim,
        config: dict[str, Any],
        trust: bool,
        progress: Progress | None,
    ) -> None:
        self.recipe, self.path, self.device, self.view, self.aim = recipe, path, device, view, aim
        self.config, self.trust, self.progress = config, trust, progress
        self.here = Path.cwd()  # the recipe may go elsewhere
        self.skipped_first = False
        self.log_ends = view.last_step if view is not None else None
        self.checkpoints = list(view.run.checkpoints) if view is not None else []

    # ---- rolling

    def best_attempt(self) -> Attempt:
        """The attempt whose losses follow the log: of the numberings N + 1 and N, and of the saved and the recipe's learning rate."""
        runner, account, saved = self.build()
        firsts = self.firsts(runner, saved)
        attempts = []
        for i, first in enumerate(firsts):
            if i:
                runner, account, saved = self.build()
            attempts.append(self.attempt(runner, account, first, final=i == len(firsts) - 1))
            if attempts[-1].fidelity.exact == attempts[-1].fidelity.compared > 0:
                break
        best = max(attempts, key=_trust)
        if not best.fidelity.ok and best.fidelity.compared and (other := self.with_recipe_rate(best)) is not None and _trust(other) > _trust(best):
            best = other
        if len(firsts) > 1 and best.fidelity.ok:
            best.account.fitted.append(f"first step after the checkpoint: {best.first}, as the logged losses decide")
        if not best.fidelity.ok and best.fidelity.compared and len(firsts) == 1 and self.skipped_first:
            if self.aim.asked is not None:
                raise ReplayError(f"step {self.aim.asked} lies before the checkpoint {self.path.name}, by the logged losses: choose an earlier one")
            raise ReplayError(f"{self.path} is of the last step there is: no step after it can be replayed and compared with the log")
        if best.roll.ended == _ABANDONED:
            runner, account, _ = self.build()
            best = self.attempt(runner, account, best.first, final=True)
        return best

    def build(self) -> tuple[StepRunner, Account, Saved]:
        """The recipe's objects, made afresh, with the checkpoint in them."""
        os.chdir(self.here)
        saved = read_saved(self.path, trust=self.trust)
        context = Context(device=self.device, step=self.aim.asked, checkpoint=self.path.absolute(), state=saved.content, config=self.config)
        runner = StepRunner(self.recipe.build(context))
        groups = [g for o in runner.optimizers.values() for g in getattr(o, "param_groups", ())]
        rates = [g.get("lr") for g in groups]
        account = load_saved(runner, saved, trust=self.trust)
        groups = [g for o in runner.optimizers.values() for g in getattr(o, "param_groups", ())]  # loading makes new groups
        self.recipe_rates = list(zip(groups, rates, strict=True))
        return runner, account, saved

    def firsts(self, runner: StepRunner, saved: Saved) -> list[int]:
        """The steps that may be the first after the checkpoint, likeliest first."""
        given, until = runner.train_step.first_step, self.aim.step
        if given is not None:
            candidates = [int(given)]
        elif runner.train_step.batches is None and until is not None:
            candidates = [until]
        elif saved.step is None:
            raise ReplayError(f"{self.path} does not say its step: give first_step=… in the recipe's TrainStep")
        else:
            levels = [saved.content, *saved.content.values()] if isinstance(saved.content, dict) else []
            says_next = saved.counted or any(k in level for level in levels if isinstance(level, dict) for k in _NEXT_FIRST)
            candidates = [saved.step, saved.step + 1] if says_next else [saved.step + 1, saved.step]
        possible = [c for c in candidates if until is None or c <= until + self.aim.beyond]
        self.skipped_first = len(possible) < len(candidates) and len(candidates) > 1
        if not possible:
            raise ReplayError(f"step {until} lies before the checkpoint {self.path.name}, whose first step is {candidates[0]}: choose an earlier one")
        return possible if self.view is not None else possible[:1]

    def attempt(self, runner: StepRunner, account: Account, first: int, *, final: bool) -> Attempt:
        until = self.aim.step
        single = runner.train_step.batches is None
        last = first if single else until + self.aim.beyond if until is not None else first + _UNLOGGED_LIMIT - 1
        if self.log_ends is not None and not single:
            last = min(last, max(self.log_ends, first) + _UNLOGGED_LIMIT)
        losses: dict[str | None, list[LoggedLoss]] = {}
        results: list[StepResult] = []
        checkpoint = str(self.path)

        def watch(result: StepResult) -> bool:
            results.append(result)
            if len(results) == 1:
                losses.update(self.logged(runner, result))
            if len(results) == 1 and Rng.capture().same(untouched):
                account.unfitted = [line for line in account.unfitted if line != NO_RANDOM_STATE]
            if self.progress is not None:
                self.progress(len(results), last - first + 1, result)
            if final or len(results) % 8:
                return True
            so_far = compare(results, losses)
            return so_far.compared < 3 or so_far.exact > 0 or (so_far.max_rel_error or 0) < 1e-3

        account.rng.restore()
        untouched = Rng.capture()
        try:
            done = roll(runner, first, last, watch=watch)
        except ReplayError:
            raise
        except Exception as error:
            what = f"the batch of step {first + len(results)}"
            asked = any(frame.f_code is StepRunner._ask.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))
            if (said := one_line(what, error) or (ReplayError(describe(what, error)) if asked else None)) is None:
                raise
            raise said from error
        if done.raised is not None:
            if said := out_of_memory(f"step {done.last} of the replay", done.raised):
                raise said from done.raised
            if not user_frames(done.raised):
                raise done.raised
        if done.raised is not None and self.progress is not None:
            self.progress(len(results) + 1, last - first + 1, done.results[-1])
        if not final and done.fault is None and done.last < last and done.ended is None:
            done.ended = _ABANDONED
        further = self.run_on(runner, done)
        came_to_end = done.results if done.raised is None else done.results[:-1]
        fidelity = compare([*came_to_end, *further], losses, checkpoint=checkpoint, first_step=first)
        return Attempt(runner, account, done, fidelity, first)

    def logged(self, runner: StepRunner, result: StepResult) -> dict[str | None, list[LoggedLoss]]:
        """The logged tags of the losses of a step."""
        return logged_losses(self.view, runner.train_step.logged, list(result.losses), masked=self.aim.masked)

    def run_on(self, runner: StepRunner, done: Roll) -> list[StepResult]:
        """The steps between the fault and the step at which the log shows it, for what they say of fidelity."""
        until = self.aim.step
        if self.view is None or until is None or done.fault is None or done.raised is not None:
            return []
        results: list[StepResult] = []
        for step in range(done.fault + 1, min(until, done.fault + _RUN_ON) + 1):
            try:
                results.append(runner.run(runner.draw(step), step))
            except Exception:  # noqa: BLE001 - code that refuses NaN, or batches that end here: the fault itself was seen
                break
        return results

    def with_recipe_rate(self, best: Attempt) -> Attempt | None:
        """An attempt with the learning rates that the recipe set instead of the saved ones; None where they are the same.

        A run that was resumed with another rate than it was saved with follows its log only so.
        """
        runner, account, _ = self.build()
        changed = False
        for group, rate in self.recipe_rates:
            if rate is not None and float(group["lr"]) != float(rate):
                group["lr"], changed = rate, True
        if not changed:
            return None
        other = self.attempt(runner, account, best.first, final=True)
        if other.fidelity.ok:
            account.fitted.append("learning rate: the recipe's, not the checkpoint's: only with it the logged losses are reproduced")
        return other

    # ---- the culprit

    def culprit(self, attempt: Attempt, *, fix: bool) -> tuple[Culprit, bool]:
        """(culprit, whether the run could be judged)."""
        done, runner, fidelity = attempt.roll, attempt.runner, attempt.fidelity
        how = [f"rolled forward from {shown(self.path)}, steps {done.first} to {done.last}"]
        how += self.other_than_asked(done)
        if fidelity.compared:
            how.append(fidelity.note)
        wanted = min([s for s in (self.aim.step, self.log_ends) if s is not None], default=done.last)
        if done.ended and done.fault is None and done.last < wanted:
            raise ReplayError(done.ended)
        fault = done.fault if done.fault is not None else done.overflow if self.aim.failed else None
        distrust = bool(fidelity.compared) and not fidelity.ok
        if fault is None and done.diverged_at is None and self.aim.grows and not distrust and (leapt := leaps([r.loss for r in done.results])):
            done.diverged_at = done.first + leapt
        if fault is None and done.diverged_at is not None and self.aim.failed:
            found = localize(runner.train_step, runner=runner, rolled=done, fixes=fix)
            at = done.diverged_at if found.cause == "divergence" else found.step
            return replace(found, step=at, fidelity=fidelity, how=(*how, *found.how)), not distrust
        if fault is None:
            return self.not_reproduced(attempt, how, fix) if self.aim.nonfinite else self.nothing_found(attempt, how, distrust)
        if distrust and not self.where_the_log_has_it(attempt, fault):
            raised = "" if done.raised is None else f" ({describe('it', done.raised)})"
            how.append(f"the replay fails at step {fault}{raised}, the log does not: it is not the run that is replayed, so nothing is blamed")
            return Culprit(cause="none", phase="none", fidelity=fidelity, how=tuple(how)), False
        again = done.again = repeat.run_again(runner, done, fault)
        how.append(again.said)
        if again.transient:
            return Culprit(cause="transient", phase="none", step=fault, fidelity=fidelity, how=tuple(how), established="observed"), True
        found = localize(runner.train_step, runner=runner, rolled=done, fixes=fix)
        return replace(found, step=fault, fidelity=fidelity, how=(*how, *found.how)), not distrust

    def other_than_asked(self, done: Roll) -> list[str]:
        """What is to be said where the step that was asked for is not the one that was looked at, or not in the log."""
        asked, fault = self.aim.asked, done.fault
        if asked is None:
            return []
        beyond = self.log_ends is not None and asked > self.log_ends
        said = f"step {asked} lies beyond the log, which ends at step {self.log_ends}" if beyond else f"step {asked} was asked for"
        if fault is not None and fault < asked:
            return [f"{said}: step {fault} comes before it and is the first at fault"]
        if done.last < asked:
            why = ", where the batches end" if done.ended else ""
            return [f"{said}: replayed up to step {done.last} instead{why}"]
        return [f"{said}: nothing vouches for the steps after that"] if beyond else []

    def where_the_log_has_it(self, attempt: Attempt, fault: int) -> bool:
        """Whether the fault lies where the log turns non-finite: then it is the same one, although the losses before differ (noise
        whose random state was not saved)."""
        until = self.aim.step
        if until is None or not self.aim.nonfinite:
            return False
        losses = self.logged(attempt.runner, attempt.roll.results[0])
        finite = [s for found in losses.values() for loss in found for s in loss.values if s < until]
        return max(finite, default=attempt.first) <= fault <= until

    def nothing_found(self, attempt: Attempt, how: list[str], distrust: bool) -> tuple[Culprit, bool]:
        if distrust:
            how.append("no fault appeared, and the replay does not follow the log: it says nothing about the run")
        else:
            how.append(f"every loss, gradient and parameter stayed finite, up to step {attempt.roll.last}")
        found = Culprit(cause="none", phase="none", fidelity=attempt.fidelity, how=tuple(how), established="inferred" if distrust else "observed")
        return found, not distrust

    def not_reproduced(self, attempt: Attempt, how: list[str], fix: bool) -> tuple[Culprit, bool]:
        """The log is not finite, the replay is: the run went on from a bad checkpoint, or the fault was transient, or the
        replay is not faithful."""
        how = [line for line in how if line != attempt.fidelity.note]
        for bad in self.bad_on_the_way(attempt.roll):
            how.append(f"from {self.path.name} every step stays finite; {bad.name}, on the way, does not: the run is replayed from there")
            good, self.path = self.path, bad
            second = self.best_attempt()
            if second.roll.fault is not None:
                found, judged = self.culprit(second, fix=fix)
                attempt.fidelity, attempt.account = second.fidelity, second.account
                how.append(f"the run went on from {bad.name}, which is not finite: resume from {good.name} instead")
                return replace(found, how=(*how, *found.how)), judged
            self.path = good
        before = [r for r in attempt.roll.results if r.step != self.aim.step]
        earlier = compare(before, self.logged(attempt.runner, attempt.roll.results[0]) if attempt.roll.results else {})
        if not earlier.ok:
            return self.nothing_found(attempt, how, distrust=True)
        how.append(
            f"up to step {self.aim.step} the replay follows the log, there the log is not finite and the replay is: the fault did not come back "
            "(a hardware fault, a race, or something that the recipe does not rebuild)"
        )
        attempt.fidelity = replace(attempt.fidelity, note=f"{earlier.note}; at step {self.aim.step} the log is not finite and the replay is")
        return Culprit(cause="transient", phase="none", step=self.aim.step, fidelity=attempt.fidelity, how=tuple(how)), False

    def bad_on_the_way(self, done: Roll) -> list[Path]:
        """Checkpoints of the steps that were replayed which are not finite although the replay was, newest first."""
        known = [c for c in self.checkpoints if c.step is not None and done.first <= c.step <= done.last]
        return [Path(c.path) for c in sorted(known, key=lambda c: -(c.step or 0)) if inspect(self.here / c.path).finite is False]


_ABANDONED = "abandoned: the losses do not follow the log"


def _trust(attempt: Attempt) -> tuple[bool, bool, float, float]:
    """What follows the log comes first, what could not be compared before what does not follow it."""
    f = attempt.fidelity
    return f.ok, not f.compared, f.exact / max(1, f.compared), -(f.max_rel_error if f.max_rel_error is not None else 0.0)
