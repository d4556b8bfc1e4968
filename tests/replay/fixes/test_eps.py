"""Keeping an operator away from its singularity."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.advice import advised  # noqa: E402
from postmortem.replay.fixes.eps import Epsilon  # noqa: E402
from postmortem.reporters.shared.culprit_words import statistics  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(Epsilon)
def test_cures_a_division_by_zero_and_writes_the_line(ask: Any, outcome: Any) -> None:
    """The divisor kept away from zero cures the step; the changed line is suggested."""

    def step(m: Any, b: Any) -> Any:
        return (m(b["x"]) / b["d"]).sum()

    culprit = ask(step, {"x": torch.ones(3, 4), "d": torch.tensor([[1.0], [0.0], [2.0]])})
    assert (culprit.op, outcome(culprit, "eps")) == ("div", True)
    assert '+        return (m(b["x"]) / b["d"].clamp(min=1e-06)).sum()' in culprit.suggestion.splitlines()


@cures(Epsilon)
@pytest.mark.parametrize(
    ("near", "said"),
    [
        (1e-7, "which also changes 1 of the 3 values not at the singularity (the nearest is 1e-07 away from it)"),
        (1e-3, "which changes no value that is not at the singularity"),
    ],
)
def test_says_which_regular_values_the_change_touches(near: float, said: str, ask: Any) -> None:
    """The bound lies above a value whose logarithm is finite: it changes that one as well."""
    batch = {"x": torch.tensor([0.0, near, 1.0, 2.0])}
    culprit = ask(lambda m, b: (m.weight.sum() * b["x"].log()).sum(), batch)
    [eps] = [fix for fix in culprit.fixes if fix.name == "eps"]
    assert eps.cured
    assert said in eps.how


@cures(Epsilon)
@pytest.mark.parametrize(("low", "outside"), [(-0.0142, "1 of 3 values lies outside"), (-1e-7, "")])
def test_a_bound_does_not_hide_values_far_outside_the_range(low: float, outside: str, ask: Any) -> None:
    """What made them negative comes first in what to do, and the bound last; rounding may make them so by a little."""
    batch = {"x": torch.tensor([low, 0.9, 0.5])}
    culprit = ask(lambda m, b: (m.weight.sum() * b["x"].sqrt()).sum(), batch)
    [eps] = [fix for fix in culprit.fixes if fix.name == "eps"]
    assert eps.cured
    assert outside in eps.note
    assert bool(eps.note) == bool(outside)
    told = advised(culprit, None)
    assert ("find where the input of sqrt leaves its range" in told[0]) == bool(outside)
    assert outside in told[0]
    assert ("clamp" in told[-1]) == bool(outside)
    assert not any(name == "values" for name, _ in statistics(culprit.tensor))


@cures(Epsilon)
@pytest.mark.parametrize(("other", "note"), [(1e-9, "all 2 values are then at the bound"), (0.5, "")])
def test_says_where_no_gradient_is_left(other: float, note: str, ask: Any) -> None:
    """A clamped value has no gradient; of a divisor nothing is said, as the dividend keeps its own."""
    batch = {"x": torch.tensor([0.0, other])}
    culprit = ask(lambda m, b: (m.weight.sum() * b["x"].log()).sum(), batch)
    [eps] = [fix for fix in culprit.fixes if fix.name == "eps"]
    assert eps.cured
    assert eps.note.startswith(note)
    assert bool(eps.note) == bool(note)
    culprit = ask(lambda m, b: (m.weight.sum() / b["d"]).sum(), {"d": torch.zeros(2)})
    assert [fix.note for fix in culprit.fixes if fix.name == "eps"] == [""]


@cures(Epsilon)
def test_cures_an_optimizer_without_eps(ask: Any, outcome: Any) -> None:
    """0 / 0 in the update of Adam: there is no line of the user's, so that the optimizer gets an eps."""
    model = torch.nn.Linear(4, 4, bias=False)
    culprit = ask(lambda m, b: m(b).sum() * 0, torch.ones(2, 4), model, torch.optim.Adam(model.parameters(), eps=0.0))
    assert (culprit.phase, outcome(culprit, "eps"), culprit.suggestion) == ("optimizer", True, None)


@leaves(Epsilon)
def test_does_not_cure_a_quotient_that_overflows_far_from_zero(ask: Any, outcome: Any) -> None:
    """1e38 / 1e-3 is too large, and 1e-3 is farther from zero than any epsilon."""
    batch = {"x": torch.full((3, 4), 1e38), "d": torch.full((3, 1), 1e-3)}
    culprit = ask(lambda m, b: ((b["x"] + m.weight[0]) / b["d"]).sum(), batch)
    assert (culprit.op, outcome(culprit, "eps"), culprit.suggestion) == ("div", False, None)


@leaves(Epsilon)
def test_is_not_tried_on_an_operator_without_a_singularity(ask: Any, outcome: Any) -> None:
    """An exponential that overflows has no argument to be kept away from anything."""
    culprit = ask(lambda m, b: (m(b) * 0 + 100).exp().sum(), torch.ones(2, 4))
    assert (culprit.op, outcome(culprit, "eps")) == ("exp", None)
