"""Taking a view where a line only moves dimensions of size 1."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.view import View  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


class _Unfolded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 1, 3, 3))

    def forward(self, x: Any) -> Any:
        kernel = self.weight.permute(0, 2, 3, 1).reshape(16, 9)
        return torch.einsum("bkp,kp->bk", x, kernel)


@cures(View)
def test_cures_a_weight_whose_dimension_of_size_1_is_moved(ask: Any) -> None:
    """The line that permutes the weight is named, not the one below that reads it, and a view there is a cure."""
    culprit = ask(lambda m, b: m(b).square().mean(), torch.randn(2, 16, 9), _Unfolded())
    assert (culprit.phase, culprit.op, culprit.established) == ("layout", "permute", "cured")
    assert culprit.code == "kernel = self.weight.permute(0, 2, 3, 1).reshape(16, 9)"
    assert "+        kernel = self.weight.view(16, 3, 3, 1).reshape(16, 9)" in culprit.suggestion.splitlines()


class _Depthwise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 16, 3, groups=16, bias=False)

    def forward(self, x: Any) -> Any:
        return self.conv(x.to(memory_format=torch.channels_last))


@leaves(View)
def test_does_not_cure_a_convolution(ask: Any) -> None:
    """No permutation of the line decides on the strides: the cure is another fix's."""
    culprit = ask(lambda m, b: m(b).square().mean(), torch.randn(2, 16, 8, 8), _Depthwise())
    assert culprit.phase == "layout"
    assert not any("in place of the permutation" in text for text in culprit.how)
    assert ".view(" not in (culprit.suggestion or "")
