"""Computing the step in another precision."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.precision import BFloat16, DoublePrecision, SinglePrecision  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(BFloat16)
@cures(DoublePrecision)
@cures(SinglePrecision)
def test_every_precision_cures_an_overflow_of_half(ask: Any, outcome: Any) -> None:
    """A product of 1e6 is beyond the range of float16 and within that of the others."""
    culprit = ask(lambda m, b: (m(b) @ b.t()).sum(), torch.full((2, 4), 1e3), autocast="fp16")
    assert [outcome(culprit, name) for name in ("fp32", "bf16", "fp64")] == [True, True, True]
    assert culprit.precision_only is True


@leaves(BFloat16)
@leaves(DoublePrecision)
@leaves(SinglePrecision)
def test_no_precision_cures_a_singularity(ask: Any, outcome: Any) -> None:
    """The logarithm of zero is infinite in every precision."""
    culprit = ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4), autocast="fp16")
    assert [outcome(culprit, name) for name in ("fp32", "bf16", "fp64")] == [False, False, False]
    assert culprit.precision_only is False


def test_single_precision_is_tried_on_parameters_in_half(ask: Any, outcome: Any) -> None:
    """Without autocast the parameters tell that a step computes in half precision."""
    model = torch.nn.Linear(4, 4, bias=False).half()
    culprit = ask(lambda m, b: (m(b) * 0 + 1e5).sum(), torch.ones(2, 4).half(), model)
    assert outcome(culprit, "fp32") is True


def test_only_double_precision_is_tried_on_a_step_in_single(ask: Any, outcome: Any) -> None:
    """exp(100) overflows float32; there is no half precision to leave."""
    culprit = ask(lambda m, b: (m(b) * 0 + 100).exp().sum(), torch.ones(2, 4))
    assert [outcome(culprit, name) for name in ("fp32", "bf16", "fp64")] == [None, None, True]


def test_bfloat16_is_not_tried_on_autocast_to_it(ask: Any, outcome: Any) -> None:
    """Under autocast to bfloat16, single precision is the alternative."""
    culprit = ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4), autocast="bf16")
    assert [outcome(culprit, name) for name in ("fp32", "bf16", "fp64")] == [False, None, False]
