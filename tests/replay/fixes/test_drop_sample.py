"""Leaving out the samples at fault."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.drop_sample import DropSample  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(DropSample)
def test_cures_a_step_with_one_bad_sample(ask: Any, outcome: Any) -> None:
    """The sample whose logarithm is infinite is named, and without it the step is fine."""
    x = torch.ones(4, 4)
    x[2] = 0
    culprit = ask(lambda m, b: (m(b) * 0 + b).log().sum(), x)
    assert (culprit.samples, outcome(culprit, "drop_sample")) == ((2,), True)


@leaves(DropSample)
def test_is_withdrawn_where_the_step_fails_without_the_samples_as_well(ask: Any, outcome: Any) -> None:
    """Of two samples one is bad; the other alone has no standard deviation, so that neither is named."""
    x = torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, 0]])
    culprit = ask(lambda m, b: (m(b) * 0 + b.log()).std(0).sum(), x)
    assert (culprit.samples, outcome(culprit, "drop_sample")) == (None, None)
    assert [line for line in culprit.how if "because the step also fails without them" in line]


def test_a_step_that_needs_its_batch_whole(ask: Any, outcome: Any) -> None:
    """It does not run with fewer samples: a healthy one takes the place of the bad one, and the report says so."""
    x = torch.ones(4, 4)
    x[2] = 0
    culprit = ask(lambda m, b: (m(b) * 0 + b).reshape(4, 4).log().sum(), x)
    assert (culprit.samples, outcome(culprit, "drop_sample")) == ((2,), True)
    (fix,) = [f for f in culprit.fixes if f.name == "drop_sample"]
    assert fix.how == "without sample 2 (with a healthy one in its place, as the step does not run with fewer)"
