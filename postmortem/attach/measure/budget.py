"""A limit on the share of the program's time: measurements are repeated as often as it allows."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

clock = time.process_time
"""CPU seconds of the process: what others of a busy machine take is not counted."""


def in_the_kernel() -> float:
    """CPU seconds that the system worked for the process: pages that are copied after a fork are paid there."""
    import resource  # not on Windows, where nothing forks

    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


class Budget:
    """Says when something that costs time is due. What it cost is known afterwards: it is due again once it is paid.

    share: of the time of the ticks. allowance: seconds that may be spent in addition, in all.
    """

    def __init__(self, share: float, *, allowance: float = 0.0) -> None:
        self.share, self.allowance = share, allowance
        self.spent = 0.0
        self.earned = 0.0
        self.expected = 0.0

    @property
    def credit(self) -> float:
        """CPU seconds that are earned and not spent; negative while something is not paid yet."""
        return self.allowance + self.share * self.earned - self.spent

    def due(self) -> bool:
        """True while what was spent is covered; so the first time costs nothing."""
        return self.credit >= 0

    def earn(self, seconds: float) -> None:
        """A tick took so long."""
        self.earned += seconds

    @contextmanager
    def spend(self) -> Iterator[None]:
        """What is done inside is paid for."""
        began = clock()
        try:
            yield
        finally:
            self.spent += clock() - began


class Prepaid(Budget):
    """Nothing is due before it is earned: it costs what it cost the last times, and `expected` before the first."""

    def __init__(self, share: float, expected: float = math.inf) -> None:
        super().__init__(share)
        self.expected = expected
        self._before: float | None = None  # what was spent when it was due last

    def due(self) -> bool:
        """True if one more is covered."""
        if self._before is not None:
            cost, self._before = self.spent - self._before, None
            if cost:  # a cheaper one may be an exception
                self.expected = cost if cost > self.expected else (cost + self.expected) / 2
        if self.credit < self.expected:
            return False
        self._before = self.spent
        return True


_COMPARED = 3


class Laps:
    """The time of each tick, and what a tick that was burdened with something took more than the others.

    burden: the clock by which that is told; what no other tick is there to be compared with counts as a whole.
    """

    def __init__(self, burden: Callable[[], float] = clock) -> None:
        self._burden = burden
        self._before = 0.0
        self._usual: deque[float] = deque(maxlen=15)
        self._ended: float | None = None

    def lap(self, *, burdened: bool = False, ticks: int = 1) -> tuple[float, float]:
        """A tick has ended -> (its CPU seconds, those that it was burdened with). ticks: several have."""
        now, burden = clock(), self._burden()
        took, weight = (now - self._ended, burden - self._before) if self._ended is not None else (0.0, 0.0)
        self._ended, self._before = now, burden
        if not burdened:
            self._usual.append(weight / ticks)
            return took, 0.0
        return took, max(0.0, weight - (statistics.median(self._usual) if self._usual else 0.0))

    @property
    def known(self) -> bool:
        """There are enough ticks without a burden to compare one with."""
        return len(self._usual) >= _COMPARED

    def restart(self) -> None:
        """What was done since the last tick ended belongs to no tick."""
        self._ended, self._before = clock(), self._burden()
