"""Other orders of the batches, tried where the replay does not follow the log: a batch drawn ahead of its step, or a
recipe that counts batches from another number than the log.

Training loops that prefetch (nanoGPT draws the next batch during the step; loaders look ahead) save a random state from
which the batch of the next step cannot be drawn, because it was drawn before. Where batches come from the global
generators, these are set back by the numbers that one batch takes; numbers that an evaluation drew in between are
skipped by going back further, as long as the first loss is logged and shows which batch it was.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.roll.mersenne import back, distance
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.errors import exits_are_errors
from postmortem.replay.step.rng import Rng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from postmortem.replay.roll.mersenne import Distance
    from postmortem.replay.step.runner import StepRunner

_FARTHEST = 512
"""Batches to go back: nanoGPT evaluates 2 x 200 between the draw and the save."""


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Another order of the batches. what: in words. batches: in place of the recipe's, given those. start: the random
    state to begin with, None for the checkpoint's."""

    what: str
    batches: Callable[[Any], Any]
    start: Rng | None = None


def batch_orders(
    runner: StepRunner, saved: Rng, first: int, right: Callable[[Any], bool] | None
) -> Iterator[BatchOrder]:
    """The orders to try for a runner in the state of the checkpoint, whose random state is `saved`.

    right: whether the loss of the step `first` on a batch is the logged one; None if that step was not logged. The
    user's code may raise anything.
    """
    batches = runner.train_step.batches
    if batches is None:
        return
    saved.restore()
    here = Rng.capture()
    if not callable(batches):
        yield BatchOrder("the recipe's batches begin one batch too early", _without_the_first)
        yield from _looking_ahead(batches, here)
        return
    with exits_are_errors():
        one = batches(first)
        after = Rng.capture()
        here.restore()
        another = batches(first + 1)
    taken = distance(here, after)
    if not _same(one, another):
        for by in (-1, 1):
            yield BatchOrder(f"the batch of step N is the recipe's batches(N {by:+d})", _shifted(by))
    if taken:
        yield from _drawn_before(batches, first, here, taken, runner.train_step.accumulate, right)


def _without_the_first(batches: Iterable[Any]) -> Iterator[Any]:
    return itertools.islice(batches, 1, None)


def _shifted(by: int) -> Callable[[Any], Any]:
    return lambda batches: lambda step: batches(step + by)


def _same(one: Any, another: Any) -> bool:
    a, b = tensors_in(one), tensors_in(another)
    return len(a) == len(b) and all(map(torch.equal, a, b))


def _looking_ahead(batches: Iterable[Any], here: Rng) -> Iterator[BatchOrder]:
    """Iterators that draw a batch when they begin and another with each batch that they give out."""
    here.restore()
    with exits_are_errors():
        next(iter(batches), None)
    taken = distance(here, Rng.capture())
    if taken:
        what = "the first batch was drawn before the random state was saved (the loader looks ahead)"
        for part in (0.5, 1):
            yield BatchOrder(what, lambda batches: batches, back(here, taken.times(part)))


def _drawn_before(
    batches: Callable[[int], Any],
    first: int,
    here: Rng,
    taken: Distance,
    accumulate: int,
    right: Callable[[Any], bool] | None,
) -> Iterator[BatchOrder]:
    """Under accumulation, one micro-batch is drawn ahead: the others of its step are drawn after the save."""
    one = taken.times(1 / accumulate)
    start = here
    for batch in range(1, (_FARTHEST if right is not None else 1) + 1):
        start = back(start, one)

        def ahead(batches: Callable[[int], Any], start: Rng = start) -> Callable[[int], Any]:
            def of(step: int) -> Any:
                if step != first:
                    return batches(step)
                start.restore()
                drawn = batches(step)
                here.restore()
                if accumulate == 1:
                    return drawn
                rest = list(batches(step))[: accumulate - 1]
                back(Rng.capture(), one).restore()
                return [drawn[0], *rest]

            return of

        with exits_are_errors():
            fits = right is None or right(ahead(batches)(first))
        if fits:
            more = "" if batch == 1 else f", {batch - 1} others (of an evaluation) were drawn in between"
            yield BatchOrder(f"the first batch was drawn before the random state was saved{more}", ahead)
