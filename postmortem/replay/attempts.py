"""Rolls forward from a checkpoint, trying step numberings and learning rates until the losses match the log."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.content import Saved, read_saved
from postmortem.checkpoints.find import shown
from postmortem.core.culprit import Fidelity
from postmortem.core.errors import ReplayError
from postmortem.replay.model import Context
from postmortem.replay.recipe.ranks import RanksNeeded
from postmortem.replay.recipe.user_errors import as_replay_error, out_of_memory, user_frames
from postmortem.replay.roll.drawn_ahead import batch_orders
from postmortem.replay.roll.fidelity import LoggedLoss, compare, logged_losses
from postmortem.replay.roll.random_state import NO_RANDOM_STATE
from postmortem.replay.roll.restore import Account, load_saved
from postmortem.replay.roll.roll import Roll, roll
from postmortem.replay.roll.rounding import Rounding, measure_rounding
from postmortem.replay.roll.start import first_steps
from postmortem.replay.step.errors import BatchError
from postmortem.replay.step.rng import Rng
from postmortem.replay.step.runner import StepRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from postmortem.core.view import View
    from postmortem.replay.recipe.load import Recipe
    from postmortem.replay.roll.aim import Aim
    from postmortem.replay.step.result import StepResult

    Progress = Callable[[int, int, StepResult], None]

INITIAL = "the recipe's initial state"
_STILL = 8  # steps that show what does not learn
_RUN_ON = 200  # steps to run after the failing step, to compare them with the log
_UNLOGGED_LIMIT = 1000  # steps to run without a log to compare with


@dataclass(slots=True)
class Attempt:
    """Steps rolled forward from the checkpoint, and how well their losses match the log.

    first: the first step after the checkpoint, as this attempt numbers it. account: the loaded parts of the checkpoint.
    further: the steps after the fault, which are compared as well. rounding: None until it was measured.
    """

    runner: StepRunner
    account: Account
    roll: Roll
    fidelity: Fidelity
    first: int
    further: list[StepResult]
    rounding: Rounding | None = None


class Attempts:
    """The attempts of one replay.

    path: the checkpoint, None for the recipe's initial state. trust: unpickle everything in it. progress: called with
    (steps done, steps in all, result).
    """

    def __init__(
        self,
        recipe: Recipe,
        path: Path | None,
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
        self.checkpoints = list(view.checkpoints) if view is not None else []

    @property
    def start(self) -> str:
        """What the replay starts from, in words."""
        return INITIAL if self.path is None else f"checkpoint {shown(self.path)}"

    # ---- rolling

    def best_attempt(self) -> Attempt:
        """The attempt whose losses match the log best, of the numberings N + 1 and N and of the saved and the recipe's
        learning rate. Raises ReplayError if the requested step is before the checkpoint."""
        runner, account, saved = self.build()
        firsts = self.firsts(runner, saved)
        attempts = []
        for i, first in enumerate(firsts):
            if i:
                runner, account, saved = self.build()
            attempts.append(self.attempt(runner, account, first, final=i == len(firsts) - 1))
            if attempts[-1].fidelity.exact == attempts[-1].fidelity.compared > 0:
                break
        best = max(attempts, key=_match)
        if not best.fidelity.ok and best.fidelity.compared:
            other = self.with_recipe_rate(best)
            best = other if other is not None and _match(other) > _match(best) else best
        if not best.fidelity.ok and best.fidelity.compared:
            others = (self.with_another_order(best, first) for first in firsts)
            best = next((other for other in others if other is not None), best)
        if len(firsts) > 1 and best.fidelity.ok:
            numbering = f"{best.first} (the numbering that matches the log)"
            best.account.fitted.append(f"first step after the checkpoint: {numbering}")
        if not best.fidelity.ok and best.fidelity.compared and len(firsts) == 1 and self.skipped_first:
            if self.aim.asked is not None:
                before = f"is before {self.start}, according to the logged losses"
                raise ReplayError(f"step {self.aim.asked} {before}: choose an earlier checkpoint")
            none = "no step after it can be replayed and compared with the log"
            raise ReplayError(f"{self.path or INITIAL} is a checkpoint of the last step: {none}")
        if best.roll.ended == _ABANDONED:
            runner, account, _ = self.build()
            best = self.attempt(runner, account, best.first, final=True)
        if best.fidelity.ok and best.fidelity.exact < best.fidelity.compared:
            best.rounding = measure_rounding(best.runner, best.roll)
            best.fidelity = self.compared(best)
        return best

    def compared(self, attempt: Attempt) -> Fidelity:
        """The fidelity of an attempt, with what is known of its rounding."""
        done = attempt.roll
        came_to_end = done.results if done.raised is None else done.results[:-1]
        return compare(
            [*came_to_end, *attempt.further],
            self.logged(attempt.runner, done.results[0]) if done.results else {},
            checkpoint=None if self.path is None else str(self.path),
            first_step=attempt.first,
            rounding=attempt.rounding,
            random_state=NO_RANDOM_STATE not in attempt.account.unfitted,
        )

    def build(self) -> tuple[StepRunner, Account, Saved | None]:
        """The recipe's objects, created anew, with the checkpoint loaded into them; as they are, if there is none."""
        os.chdir(self.here)
        saved = None if self.path is None else read_saved(self.path, trust=self.trust)
        context = Context(
            device=self.device,
            step=self.aim.asked,
            checkpoint=None if self.path is None else self.path.absolute(),
            state=None if saved is None else saved.content,
            config=self.config,
        )
        made = self.recipe.build(context)
        if made.ranks > 1:
            raise RanksNeeded(self.recipe, made.ranks, self.path, self.aim, self.config)
        runner = StepRunner(made)
        groups = [g for o in runner.optimizers.values() for g in getattr(o, "param_groups", ())]
        rates = [g.get("lr") for g in groups]
        if saved is None:
            account = Account(rng=Rng.capture(runner.outside.generators))  # as it is after the recipe has seeded it
        else:
            account = load_saved(runner, saved, trust=self.trust)
        # loading makes new groups
        groups = [g for o in runner.optimizers.values() for g in getattr(o, "param_groups", ())]
        self.recipe_rates = list(zip(groups, rates, strict=True))
        return runner, account, saved

    def firsts(self, runner: StepRunner, saved: Saved | None) -> list[int]:
        """The steps that may be the first after the checkpoint, most likely first."""
        until = self.aim.step
        if runner.train_step.first_step is None and runner.train_step.batches is None and until is not None:
            candidates = [until]
        else:
            beginning = 0 if self.view is None else self.view.first_step or 0
            candidates = first_steps(runner.train_step.first_step, saved, beginning)
        possible = [c for c in candidates if until is None or c <= until + self.aim.beyond]
        self.skipped_first = len(possible) < len(candidates) and len(candidates) > 1
        if not possible:
            checkpoint = f"step {candidates[0]}, the first after {self.start}"
            raise ReplayError(f"step {until} is before {checkpoint}: choose an earlier checkpoint")
        return possible if self.view is not None else possible[:1]

    def attempt(self, runner: StepRunner, account: Account, first: int, *, final: bool) -> Attempt:
        """Rolls forward from the loaded checkpoint, whose next step is `first`. Unless `final`, the roll is abandoned
        once its losses clearly differ from the log. Raises ReplayError if a batch cannot be drawn or memory runs
        out."""
        last = first if runner.train_step.batches is None else self._last(first)
        losses: dict[str | None, list[LoggedLoss]] = {}
        results: list[StepResult] = []

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
        except BatchError as error:
            what = f"loading the batch of step {error.step}"
            raise as_replay_error(what, error.__cause__ or error) from error.__cause__
        if done.raised is not None:
            if memory := out_of_memory(f"step {done.last} of the replay", done.raised):
                raise memory from done.raised
            if not user_frames(done.raised):
                raise done.raised
        if done.raised is not None and self.progress is not None:
            self.progress(len(results) + 1, last - first + 1, done.results[-1])
        if not final and done.fault is None and done.last < last and done.ended is None:
            done.ended = _ABANDONED
        made = Attempt(runner, account, done, Fidelity(ok=False), first, self.run_on(runner, done))
        made.fidelity = self.compared(made)
        return made

    def _last(self, first: int) -> int:
        """The last step to run after the checkpoint, whose next step is `first`."""
        until = self.aim.step
        last = first + _UNLOGGED_LIMIT - 1 if until is None else until + self.aim.beyond
        if self.aim.sought is not None and self.aim.sought.kind == "still":
            last = min(last, first + _STILL - 1)
        return last if self.log_ends is None else min(last, max(self.log_ends, first) + _UNLOGGED_LIMIT)

    def logged(self, runner: StepRunner, result: StepResult) -> dict[str | None, list[LoggedLoss]]:
        """The logged values that the losses of a step are compared with, by name of the loss."""
        return logged_losses(self.view, runner.train_step.logged, list(result.losses), masked=self.aim.masked)

    def run_on(self, runner: StepRunner, done: Roll) -> list[StepResult]:
        """The steps after the failing one, up to the one at which the log shows the failure, to be compared."""
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
        """An attempt with the recipe's learning rates in place of the saved ones; None if they are equal.

        Needed for a run that was resumed with another learning rate.
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
            only = "only this one reproduces the logged losses"
            account.fitted.append(f"learning rate: from the recipe, not from the checkpoint: {only}")
        return other

    def with_another_order(self, best: Attempt, first: int) -> Attempt | None:
        """An attempt from the step `first` on that follows the log with another order of batches (`drawn_ahead.py`);
        None if there is none."""
        runner, account, _ = self.build()
        losses = self.logged(runner, best.roll.results[0]) if best.roll.results else {}
        account.rng.restore()
        before = runner.snapshot()

        def right(batch: Any) -> bool:
            runner.restore(before)
            return compare([runner.run(batch, first, until="loss")], losses).exact > 0

        digits = min((loss.digits.significant for found in losses.values() for loss in found), default=0)
        logged = any(first in loss.values for found in losses.values() for loss in found if not loss.mean)
        tries = batch_orders(runner, account.rng, first, right if logged else None)
        try:
            for order in itertools.islice(tries, _ORDERS):
                changed, account, _ = self.build()
                changed.train_step.batches = order.batches(changed.train_step.batches)
                account.rng = order.start or account.rng
                other = self.attempt(changed, account, first, final=False)
                if other.fidelity.ok and other.fidelity.exact * digits >= _NO_CHANCE:
                    account.fitted.append(f"order of the batches: {order.what}; only this reproduces the logged losses")
                    return other
        except Exception:  # noqa: BLE001 - the user's code, asked for what it may not be made for
            return None
        return None


_ORDERS = 5  # orders of the batches to roll with
_NO_CHANCE = 8  # equal digits in all: of 512 batches none has them by chance
_ABANDONED = "abandoned: the replayed losses do not match the log"


def _match(attempt: Attempt) -> tuple[bool, bool, float, float]:
    """Sort key of attempts: one that matches the log is better than one that could not be compared, and that is better
    than one that differs."""
    f = attempt.fidelity
    exact = f.exact / max(1, f.compared)
    return f.ok, not f.compared, exact, -(f.max_rel_error if f.max_rel_error is not None else 0.0)
