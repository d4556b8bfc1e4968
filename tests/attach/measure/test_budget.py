"""What is measured stays within its share of the program's time."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from postmortem.attach.measure import budget as module
from postmortem.attach.measure.budget import Budget, Laps


class Clock:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "clock", found)
    return found


@pytest.mark.parametrize(("cost", "most"), [(0.001, 1000), (0.1, 101), (5.0, 3)])
def test_the_dearer_the_rarer(clock: Clock, cost: float, most: int) -> None:
    """1,000 ticks of a second each: one per cent of them is spent, and at most one time more."""
    budget, times = Budget(0.01), 0
    for _ in range(1000):
        budget.earn(1.0)
        if budget.due():
            times += 1
            with budget.spend():
                clock.now += cost
    assert times == min(most, 1000)
    assert budget.spent <= 10.0 + cost


def test_an_allowance_comes_in_addition(clock: Clock) -> None:
    """A short program is measured in every tick."""
    budget = Budget(0.01, allowance=2.0)
    times = 0
    for _ in range(20):
        budget.earn(1.0)
        if budget.due():
            times += 1
            budget.spent += 0.1
    assert times == 20


def test_a_burdened_tick_is_compared_with_the_others(clock: Clock) -> None:
    """And does not count as one of the usual ones."""
    laps = Laps(clock)
    found = []
    for burdened in (False, False, False, True, True, False):
        found.append(laps.lap(burdened=burdened))
        clock.now += 3.0 if len(found) in (3, 4) else 1.0
    assert found[3] == (3.0, pytest.approx(2.0))
    assert found[4] == (3.0, pytest.approx(2.0))
    assert found[5] == (1.0, 0.0)
