"""Which optimizer steps when: a loop may step several in turn, as a GAN does, and each has a loss of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT = 160
"""Ticks of which the optimizer is kept."""
_LONGEST = 16  # ticks in one round of a loop, at most
_ROUNDS = 2  # that have to be alike


def unlike(turns: Sequence[tuple[int, int]], at: int) -> set[int]:
    """The ticks of `turns`, of (tick, optimizer), that step another optimizer than the tick `at` does.

    That one may not have come to its step: the rounds before tell whose turn it is. None where one optimizer is
    stepped, or where no rounds are seen.
    """
    known = dict(turns)
    before = [optimizer for tick, optimizer in turns if tick < at]
    if len(set(before)) < 2:
        return set()
    expected = known.get(at)
    if expected is None:
        period = next((n for n in range(2, _LONGEST + 1) if _repeats(before, n)), None)
        if period is None:
            return set()
        expected = before[-period]
    return {tick for tick, optimizer in turns if optimizer != expected}


def _repeats(before: Sequence[int], period: int) -> bool:
    last = before[-(1 + _ROUNDS) * period :]
    return len(last) == (1 + _ROUNDS) * period and last[period:] == last[:-period]
