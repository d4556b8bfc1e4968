"""What the autograd graph of a tensor shows: which operations produced it, and the range of values they can give."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SHAPES = re.compile(
    r"(View|UnsafeView|Reshape|ReshapeAlias|Squeeze|Unsqueeze|Transpose|Permute|T|Select|Slice|Index|IndexSelect|Gather"
    r"|Clone|ToCopy|Expand|Alias|AsStrided|Unbind|Split|SplitWithSizes|Narrow|Contiguous)Backward\d*"
)
_BOUNDS = {
    "Relu": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
_LIMITS = {"Clamp": ("_saved_min", "_saved_max"), "Hardtanh": ("_saved_min_val", "_saved_max_val")}
_DEEP = 30
_ROWS = {"Index", "IndexSelect", "Slice", "Clone", "Alias", "ToCopy", "Contiguous"}
"""What leaves the dimensions of a tensor in their places."""


def nodes_behind(node: Any, most: int = 3) -> list[Any]:
    """The autograd nodes from this one on along the first input, without those that only change a shape."""
    found: list[Any] = []
    for _ in range(_DEEP):
        if node is None or len(found) == most:
            break
        if not _SHAPES.fullmatch(node.name()):
            found.append(node)
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return found


def name_of(node: Any) -> str:
    """`Softmax` of SoftmaxBackward0."""
    return re.sub(r"Backward\d*$", "", str(node.name()))


def bounds(node: Any) -> tuple[float, float] | None:
    """Between which values all results of an operation lie; None where it does not limit them."""
    name = name_of(node)
    if name in _LIMITS:
        low, high = (getattr(node, each, None) for each in _LIMITS[name])
        return (
            float(low) if isinstance(low, (int, float)) else -math.inf,
            float(high) if isinstance(high, (int, float)) else math.inf,
        )
    return _scaled(node) if name == "Mul" else _BOUNDS.get(name)


def _scaled(node: Any) -> tuple[float, float] | None:
    """The bounds of a product with one number, as of `2 * torch.tanh(x)`."""
    saved = [getattr(node, each, None) for each in ("_saved_self", "_saved_other")]
    numbers = [each for each in saved if each is not None]
    given = [n for n, _ in node.next_functions if n is not None]
    if len(numbers) != 1 or numbers[0].numel() != 1 or len(given) != 1:
        return None
    inner = next(iter(nodes_behind(given[0], 1)), None)
    limits = bounds(inner) if inner is not None and name_of(inner) != "Mul" else None
    factor = float(numbers[0])
    if limits is None or not factor:
        return None
    low, high = sorted(factor * each for each in limits)
    return low, high


def shape_of(node: Any, output: int = 0) -> tuple[int, ...]:
    """Of what an operation gave."""
    return tuple(node._input_metadata[output].shape)


def behind(tensor: torch.Tensor) -> list[Any]:
    """The nodes that made a tensor, as `nodes_behind`."""
    return nodes_behind(tensor.grad_fn)


def normalised_over(tensor: torch.Tensor) -> int | None:
    """The dimension over which the softmax ran that made a tensor, of which rows may have been picked since; None where
    it was made in another way, or its dimensions have changed."""
    node: Any = tensor.grad_fn
    while node is not None and name_of(node) in _ROWS:
        node = node.next_functions[0][0]
    if node is None or name_of(node) not in ("Softmax", "LogSoftmax"):
        return None
    dims = len(shape_of(node))
    return _signed(node._saved_dim) % dims if dims == tensor.dim() and dims else None


def _signed(saved: int) -> int:
    """Nodes save a dimension without its sign."""
    return saved - (1 << 64) if saved >= 1 << 63 else saved
