"""Running a step again tells what is deterministic from what is not."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.rerun.determinism import Again, run_again  # noqa: E402
from postmortem.replay.roll.roll import roll  # noqa: E402
from postmortem.replay.step.runner import StepRunner  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def _again(change: Callable[[Any, bool], Any], batches: int) -> Again:
    """`run_again` of the last of some steps, where `change(loss, whether it is the last)` gives the loss of each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    given = [torch.randn(4, 3) for _ in range(batches)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = TrainStep(
        model, optimizer, lambda m, b: change(m(b).pow(2).mean(), torch.equal(b, given[-1])), batches=given
    )
    runner = StepRunner(step)
    done = roll(runner, 0, batches - 1)
    return run_again(runner, done, done.last)


def test_deterministic() -> None:
    """A step that fails in the same way every time, after another one whose numbers can be compared, or alone."""
    again = _again(lambda loss, last: loss / 0 if last else loss, 3)
    assert again == Again(
        "run twice from the same state, the step gives bitwise identical results: deterministic", True, False
    )
    alone = _again(lambda loss, last: loss / 0, 1)
    assert alone == Again("run twice from the same state, the step fails in the same way", True, False)


def test_what_is_not_finite_hides_other_bits() -> None:
    """Noise that no generator of torch, numpy or python makes is seen in a step before, where all numbers of the step
    at fault are NaN."""
    clock = map(float, itertools.count(1))
    again = _again(lambda loss, last: loss * next(clock) * (float("nan") if last else 1), 3)
    assert (again.deterministic, again.transient) == (False, False)
    different = "run twice from the same state, step 0 gives bitwise different results"
    assert again.message.startswith(f"{different}, and no operator in it is known to be nondeterministic")


def test_other_bits_of_the_step_itself() -> None:
    """A fault that comes and goes is not deterministic; one that is gone is transient."""
    comes = itertools.cycle([True, True, False])
    again = _again(lambda loss, last: loss / 0 if last and next(comes) else loss, 2)
    assert (again.deterministic, again.transient, again.comes_and_goes) == (False, False, True)
    once = iter([True])
    again = _again(lambda loss, last: loss / 0 if last and next(once, False) else loss, 2)
    assert (again.deterministic, again.transient) == (True, True)


def _asked(wrong: Callable[[], bool]) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        lambda m, b: m(b).sum() / (0 if wrong() else 1),
        torch.randn(4, 3),
    )
    return localize(step)


def test_localize_says_that_a_step_is_deterministic() -> None:
    """Of a loss that is NaN that shows only in a run that a repair makes finite."""
    how = _asked(lambda: True).how
    assert how[0] == "run twice from the same state, the step fails in the same way"
    assert "two finite reruns of the step give the same losses: deterministic" in how


@pytest.mark.parametrize("seed", range(8))
def test_luck_is_no_cure(seed: int) -> None:
    """A fault that comes in every other run, by a coin that no generator known here throws, is cured by nothing that
    leaves the coin as it is."""
    coin = random.Random(seed)
    thrown = iter([True] * 3 + [coin.random() < 0.5 for _ in range(10_000)])
    found = _asked(lambda: next(thrown))
    assert not {f.name for f in found.fixes if f.cured} - {"eps"}
    assert found.phase == "none" or any("not deterministic: a fix cures it if 10 reruns" in line for line in found.how)


def test_a_fault_that_does_not_come_back() -> None:
    """Run again twice from the same state, the step is finite: nobody is blamed."""
    once = iter([True])
    found = _asked(lambda: next(once, False))
    assert (found.cause, found.phase, found.fixes) == ("transient", "none", ())
