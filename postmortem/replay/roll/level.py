"""The level of a loss, and when it has left that."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COURSE = 20
"""So many losses before the step at fault are the course of the loss."""


def ceiling(losses: Sequence[float]) -> float:
    """Ten times the level at which these losses begin; a loss above it has left that level."""
    head = [x for x in losses[: max(3, len(losses) // 10)] if math.isfinite(x)]
    if not head:
        return math.inf
    if len(head) < 3:  # too few for a spread
        return 10 * max(map(abs, head))
    middle = statistics.median(head)
    return middle + 9 * max(abs(middle), *(abs(x - middle) for x in head[1:]), 1e-12)


def far_from(before: Sequence[float], loss: float) -> float | None:
    """The median size of the losses `before`, if `loss` is more than ten times as large as nine tenths of them and as
    the last one; else None. None as well where all of them are zero or there is none: nothing can be compared then."""
    sizes = [abs(x) for x in before if math.isfinite(x)]
    if not any(sizes):
        return None
    usual = max(sizes[-1], sorted(sizes)[(len(sizes) - 1) * 9 // 10])
    return statistics.median(sizes) if abs(loss) > 10 * usual else None


def leaves_level(losses: Sequence[float]) -> int | None:
    """The index from which on the loss has left its level for good, growing over at least two steps; else None.

    It has left if it is ten times the level of the first steps, or ten times all losses before and still growing. A
    single jump counts only if it is a thousandfold: the update before it destroyed the weights. So does a rise over the
    last steps, to a thousand times the losses shortly before it, of a loss that began higher than these.
    """
    n = len(losses)
    if not n or not all(map(math.isfinite, losses)):
        return None
    limit = ceiling(losses)
    above = [x > limit for x in losses]
    crossed = next((i for i in range(n, 0, -1) if not above[i - 1]), 0)
    lowest_after = list(itertools.accumulate(reversed(losses), min))[::-1]
    highest, apart = abs(losses[0]), n
    for i in range(1, n):
        lowest = lowest_after[i]
        if lowest > 10 * highest and (losses[-1] > 10 * losses[i] or lowest > 1000 * highest):
            apart = i
            break
        highest = max(highest, abs(losses[i]))
    left = min([i for i in (crossed, apart) if 0 < i <= n - 2], default=None)
    if left is None and n >= 2 and losses[-1] > 1000 * max(abs(x) for x in losses[:-1]):
        return n - 1
    return _rises_at_the_end(losses) if left is None else left


def _rises_at_the_end(losses: Sequence[float]) -> int | None:
    """The first of the last two or more losses that rise from step to step, from above the course before them to a
    thousand times its largest loss."""
    n = len(losses)
    start = n - 1
    while start > 1 and losses[start - 1] > losses[start - 2]:
        start -= 1
    for i in range(max(1, start), n - 1):
        highest = max(abs(x) for x in losses[max(0, i - COURSE) : i])
        if losses[i] > highest and losses[-1] > 1000 * highest:
            return i
    return None


def leaps(losses: Sequence[float]) -> int | None:
    """The index at which the loss jumps to ten times all losses before it, if half of the later ones stay above twice
    their maximum; else None.

    Noise can do that too, so this is only for runs whose log shows that the loss grew.
    """
    sizes = [abs(x) for x in losses]
    highest = list(itertools.accumulate(sizes, max))
    for i in range(1, len(sizes)):
        if sizes[i] > 10 * highest[i - 1] and statistics.median(sizes[i:]) > 2 * highest[i - 1]:
            return i
    return None
