"""Ranks, compared with one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.silent.faults import NotChecked
from postmortem.silent.weight_facts import Compared, Joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.silent.look import Look

_APART = 1e-4


@dataclass(frozen=True)
class Step:
    """A step of two ranks. weights, gradients: how many parameters differ, of `parameters`."""

    step: int
    parameters: int
    weights: int
    gradients: int


def ranks_of(looks: Sequence[Look]) -> list[Look]:
    """The looks of one group of processes, by rank. Raises NotChecked if there is none of two or more."""
    joined = {j.rank: look for look in looks for j in look.of(Joined) if j.world > 1}
    if len(joined) < 2:
        raise NotChecked("the program does not train in several processes, or only one of them was seen")
    return [joined[rank] for rank in sorted(joined)]


def compared(first: Look, other: Look) -> list[Step]:
    """The steps at which both were measured and hold parameters of the same shapes."""
    theirs = {(c.optimizer, c.step): c for c in other.of(Compared)}
    pairs = [(mine, theirs.get((mine.optimizer, mine.step))) for mine in first.of(Compared)]
    return [_step(a, b) for a, b in pairs if b is not None and a.shapes == b.shapes and a.optimizer == first.busiest]


def _step(a: Compared, b: Compared) -> Step:
    weights = sum(_apart(x, y) for x, y in zip(a.sums, b.sums, strict=True))
    gradients = sum(abs(x - y) > _APART * max(x, y) for x, y in zip(a.gradients, b.gradients, strict=True))
    return Step(a.step, len(a.sums), weights, gradients)


def _apart(a: list[float], b: list[float]) -> bool:
    size = max(a[1], b[1])
    return abs(a[1] - b[1]) > _APART * size or abs(a[0] - b[0]) > _APART * size**0.5
