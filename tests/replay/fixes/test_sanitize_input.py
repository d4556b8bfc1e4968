"""Cleaning the inputs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.sanitize_input import SanitizeInput  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(SanitizeInput)
def test_cures_a_nan_in_the_batch(ask: Any, outcome: Any) -> None:
    """With the NaN set to zero the step is finite."""
    x = torch.ones(4, 4)
    x[2, 1] = torch.nan
    culprit = ask(lambda m, b: m(b).sum(), x)
    assert (culprit.phase, outcome(culprit, "sanitize_input")) == ("data", True)


@leaves(SanitizeInput)
def test_does_not_cure_what_clean_inputs_lead_to(ask: Any, outcome: Any) -> None:
    """A clean batch is not changed, and the report says so."""
    culprit = ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4))
    assert outcome(culprit, "sanitize_input") is False
    assert next(f.how for f in culprit.fixes if f.name == "sanitize_input").endswith("changes nothing in this batch")
