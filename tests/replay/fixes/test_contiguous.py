"""Making the tensors that a line reads contiguous."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.contiguous import Contiguous  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


class _Depthwise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)

    def forward(self, x: Any) -> Any:
        y = x.to(memory_format=torch.channels_last)
        return self.conv(y)


@cures(Contiguous)
def test_cures_a_gradient_with_other_strides(ask: Any) -> None:
    """A convolution that reads a contiguous tensor gives its weight a gradient of the weight's strides."""
    culprit = ask(lambda m, b: m(b).square().mean(), torch.randn(2, 16, 8, 8), _Depthwise())
    assert (culprit.phase, culprit.established) == ("layout", "cured")
    assert "+        return self.conv(y.contiguous())" in culprit.suggestion.splitlines()


@leaves(Contiguous)
def test_does_not_cure_strides_that_a_hook_made(ask: Any) -> None:
    """The gradient is transposed after it was computed: what the line reads does not matter."""
    model = torch.nn.Linear(4, 4, bias=False)

    def turned(p: Any) -> None:
        transposed = p.grad.t().contiguous()
        p.grad = transposed.t()

    model.weight.register_post_accumulate_grad_hook(turned)
    culprit = ask(lambda m, b: m(b).sum(), torch.ones(2, 4), model)
    assert (culprit.phase, culprit.established, culprit.suggestion) == ("layout", "observed", None)
