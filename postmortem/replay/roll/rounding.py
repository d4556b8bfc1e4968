"""How far rounding alone moves the losses of a roll: measured on this machine, not assumed.

The roll is run again with another number of threads, whose sums are added up in another order, and with every parameter
changed in its last bit, as kernels of another machine or version would. Both grow with the steps as rounding errors do.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.runner import StepRunner

_MARGIN = 10
"""A difference of up to this many times the measured one is rounding: the kernels of another machine differ in every
operator, the reruns in the order of sums and in the weights only."""
AT_LEAST = 1e-5
"""Relative difference that is always allowed: a loss in which a rerun happens not to differ has a last digit, too."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """The largest relative change of a loss by rounding, up to each step of a roll."""

    moved: dict[int, float] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest relative change over all steps."""
        return max(self.moved.values(), default=0.0)

    @property
    def accepted(self) -> float:
        """The largest relative difference that counts as rounding at any step."""
        return max(AT_LEAST, _MARGIN * self.largest)

    def explains(self, step: int, error: float) -> bool:
        """True if rounding may have changed the loss of `step` by the relative `error`."""
        return error <= max(AT_LEAST, _MARGIN * self.moved.get(step, self.largest))


def measure_rounding(runner: StepRunner, done: Roll) -> Rounding:
    """Reruns the finite steps of the roll and compares their losses. Leaves the runner in the state it was in."""
    steps = [r for r in done.results if all(map(math.isfinite, r.losses.values())) and r.step != done.fault]
    after = runner.snapshot()
    moved = dict.fromkeys((r.step for r in steps), 0.0)
    try:
        runner.restore(done.start)
        with _another_number_of_threads():
            _compare(runner, steps, moved)
        runner.restore(done.start)
        _change_last_bits(runner)
        _compare(runner, steps, moved)
    finally:
        runner.restore(after)
    largest = 0.0
    for step in sorted(moved):  # an error once made stays in the weights
        largest = moved[step] = max(largest, moved[step])
    return Rounding(moved)


def _compare(runner: StepRunner, steps: Sequence[StepResult], moved: dict[int, float]) -> None:
    for before in steps:
        losses = runner.run(runner.draw(before.step), before.step).losses
        for name, value in before.losses.items():
            change = abs(losses.get(name, math.nan) - value) / max(abs(value), 1e-12)
            if math.isfinite(change):
                moved[before.step] = max(moved[before.step], change)


@contextmanager
def _another_number_of_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _change_last_bits(runner: StepRunner) -> None:
    """Makes every element of every parameter larger or smaller by its last bit, the same way each time."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in runner.named_parameters().values():
            if p.is_floating_point() and p.layout == torch.strided:
                up = torch.randint(0, 2, p.shape, generator=generator).to(p.device)
                p.mul_(1 + (2 * up - 1).to(p.dtype) * torch.finfo(p.dtype).eps)
