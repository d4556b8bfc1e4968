"""Which line gives a gradient other strides than its parameter."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from postmortem.replay.trace.producers import Producers, name_of  # noqa: E402
from postmortem.replay.trace.strides import contiguous_strides, dense, difference, format_of  # noqa: E402
from postmortem.replay.trace.tensors import storage_key  # noqa: E402

pytestmark = pytest.mark.torch


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Any) -> Any:
        return w * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        turned = g.t().contiguous().t() * 2  # MADE custom_function
        return turned  # noqa: RET504 - the line above makes it


def turning(g: Any) -> Any:
    return g.t().contiguous().t()  # MADE hook


def permute(w: Any) -> Any:
    k = w.t().reshape(-1)  # MADE permute
    return k * torch.arange(12.0)


def handed_on(w: Any) -> Any:
    masked = torch.tanh(w) * torch.ones(4, 3)
    return masked.t().reshape(-1) * torch.arange(12.0)  # MADE handed_on


def einsum(w: Any) -> Any:
    return torch.einsum("bi,oi->bo", torch.ones(2, 3), w)  # MADE einsum


def expanded(w: Any) -> Any:
    return w.sum()  # MADE expanded


def tied(w: Any) -> Any:
    rows = nn.functional.embedding(torch.tensor([0, 2]), w)
    return torch.einsum("bi,oi->bo", rows, w)  # MADE tied


def custom_function(w: Any) -> Any:
    return Turned.apply(w)


def hook(w: Any) -> Any:
    if not w._backward_hooks:
        w.register_hook(turning)
    return w * 2


def _block(w: Any) -> Any:
    return w.mT[torch.tensor([0, 2])] * 2  # MADE reentrant


def reentrant(w: Any) -> Any:
    return checkpoint(lambda x: _block(w) * x, torch.ones(1, requires_grad=True), use_reentrant=True)


PRODUCERS = [permute, handed_on, einsum, expanded, tied, custom_function, hook, reentrant]


def _met(function: Any) -> tuple[Any, Producers]:
    w = nn.Parameter(torch.arange(12.0).view(4, 3))
    with Producers() as watch:
        function(w).square().sum().backward() if function is not expanded else function(w).backward()
    return w, watch


@pytest.mark.parametrize("function", PRODUCERS, ids=lambda f: f.__name__)
def test_the_line_that_makes_the_strides(function: Any) -> None:
    """Not the line that reads the result, and not one that only hands on what it got."""
    w, watch = _met(function)
    lines = inspect.getsource(inspect.getmodule(test_the_line_that_makes_the_strides) or function).splitlines()
    made = next(i for i, text in enumerate(lines, 1) if text.endswith(f"# MADE {function.__name__}"))
    assert [(file, line) for _, file, line in watch.met.values()] == [(__file__, made)]
    assert list(watch.met) == [storage_key(w)]


@pytest.mark.parametrize(
    "function",
    [
        lambda w: torch.ones(2, 3) @ w.t(),
        lambda w: nn.functional.linear(torch.ones(2, 4), w.t()),
        lambda w: nn.functional.embedding(torch.tensor([0, 1]), w) @ w.t(),
        lambda w: w.as_strided((2, 3), (6, 1)),
        lambda w: w[:, [0, 2]].expand(2, 4, 2),
        lambda w: checkpoint(lambda x: torch.tanh(x @ w.t()), torch.ones(2, 3), use_reentrant=False),
    ],
)
def test_gradients_that_have_the_strides_of_their_parameter(function: Any) -> None:
    """Transposing, indexing and expanding a weight need not change its gradient's strides: nothing is named."""
    assert _met(function)[1].met == {}


def test_torch_is_as_before() -> None:
    """Anomaly mode and `torch.autograd.backward` are put back."""
    before = torch.autograd.backward, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    _met(einsum)
    assert (torch.autograd.backward, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == before


def test_a_dimension_of_size_1_is_no_copy() -> None:
    """Strides of a dimension of size 1 say nothing of the memory."""
    assert difference((64, 1, 3, 3), (9, 9, 3, 1), (9, 1, 3, 1)) == "size-1"
    assert difference((64, 2, 3, 3), (18, 9, 3, 1), (18, 1, 6, 2)) == "copy"
    assert difference((2, 3), (3, 1), (3, 1)) is None
    assert contiguous_strides((2, 0, 3)) == (3, 3, 1)
    assert (dense((2, 3), (1, 2)), dense((2, 3), (4, 1)), dense((2, 3), (0, 1))) == (True, False, False)
    assert format_of((2, 3, 4, 4), (48, 1, 12, 3)) == "channels_last"
    assert (name_of("PermuteBackward0"), name_of("ConvolutionBackward0")) == ("permute", "convolution")
