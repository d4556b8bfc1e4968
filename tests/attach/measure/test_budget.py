"""What is measured stays within its share of the program's time."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from postmortem.attach.measure import budget as module
from postmortem.attach.measure.budget import Budget, Laps, Prepaid
from postmortem.attach.paced import not_paid


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


def test_nothing_is_begun_before_it_is_earned() -> None:
    """Not the first time, for which the cost is estimated, and not after one that was dearer than that."""
    budget, costs, spent = Prepaid(0.01), iter([0.5, 2.0, 0.1, 0.1]), []
    assert not budget.due()  # what it costs is not known
    budget.expected = 0.5
    for _ in range(1000):
        budget.earn(1.0)
        if budget.due():
            budget.spent += next(costs, 0.1)
            spent.append((round(budget.earned), budget.credit >= 0))
    assert spent[:3] == [(50, True), (100, False), (450, True)]  # 2.5 s are paid at 250, as much again is awaited
    assert budget.credit >= 0


def test_a_measurement_that_was_due_and_not_made_says_nothing_about_its_cost() -> None:
    """What is expected stays."""
    budget = Prepaid(0.5, 1.0)
    budget.earn(10.0)
    assert budget.due()
    assert budget.due()
    assert budget.expected == 1.0


def test_ticks_of_a_rest_count_as_usual_ones(clock: Clock) -> None:
    """Those that went by between two looks at the clock share what they took."""
    laps = Laps(clock)
    laps.restart()
    for _ in range(3):
        clock.now += 8.0
        laps.lap(ticks=8)
    clock.now += 3.0
    assert laps.lap(burdened=True) == (3.0, 2.0)


def test_a_fault_before_the_first_copy_says_what_would_help() -> None:
    """When it would have been paid, and the budget that would have paid it; where none would, to leave it out."""
    copies = Prepaid(0.005, 0.4)
    assert "none is made before the first step has ended" in not_paid(0.01, copies)
    copies.earn(20.0)
    said = not_paid(0.01, copies)
    assert "costs about 0.4 s of CPU time, is made once 80 s of steps count for it, and 20 s did" in said
    assert said.endswith(
        "about budget=0.04 would have paid it by now, and without a budget there is one from the first step on"
    )
    copies = Prepaid(0.005, 0.4)
    copies.earn(0.5)
    assert "budget=" not in not_paid(0.01, copies)
    copies.spent = 0.4
    assert "in some steps only" in not_paid(0.01, copies)
