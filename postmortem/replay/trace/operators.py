"""What the schema and the name of an aten operator say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

WRITES_OVER = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"}
FRESH = {"lift_fresh", "lift_fresh_copy", "lift"}
ABSORBERS = {
    "logsumexp",
    "logaddexp",
    "logcumsumexp",
    "amax",
    "amin",
    "max",
    "min",
    "aminmax",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
}
"""Operators that masks of infinities are made for: their output is finite unless everything is masked."""
LOGARITHMS = {"log", "log2", "log10", "log1p"}
PRODUCTS = {"mul", "div", "reciprocal", "pow"}
"""An infinite number as their argument is no mask: zero times infinity is NaN."""
SUMS_OF_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution", "embedding_bag"}
"""An infinity in their arguments is no mask: it makes the whole sum infinite, or NaN."""
MAKERS = {
    "full",
    "full_like",
    "fill",
    "fill_",
    "new_full",
    "scalar_tensor",
    "masked_fill",
    "masked_fill_",
    "constant_pad_nd",
}


@dataclass(frozen=True, slots=True)
class OpInfo:
    """Facts of one operator overload.

    mutates: positions of the arguments that are written. out: keyword arguments that are only written (`out=`).
    item: it turns a tensor into a Python number. fresh: it makes a tensor from Python numbers or numpy.
    """

    name: str
    mutates: tuple[int, ...]
    undeclared: tuple[int, ...]
    """Arguments that are written although the schema does not declare it: the running statistics of batch norms."""
    out: frozenset[str]
    view: bool
    unset: bool
    """The output is uninitialised memory (`empty`), zeros or ones: nothing to examine."""
    item: bool
    fresh: bool


infos: dict[Any, OpInfo] = {}


def info_of(func: Any) -> OpInfo:
    """The record of an operator overload, made once."""
    known = infos.get(func)
    if known is None:
        name = func._schema.name.rpartition("::")[2]
        arguments = list(enumerate(func._schema.arguments))
        writes = [(i, a) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
        statistics = [i for i, a in arguments if a.name in ("running_mean", "running_var")]
        undeclared = tuple(statistics) if "batch_norm" in name and not writes else ()
        known = infos[func] = OpInfo(
            name,
            tuple(i for i, a in writes if not a.kwarg_only) or undeclared,
            undeclared,
            frozenset(a.name for _, a in writes if a.kwarg_only),
            not writes and name not in FRESH and any(a.alias_info is not None for a in func._schema.returns),
            name.startswith(("empty", "new_empty", "zeros", "new_zeros", "ones", "new_ones")),
            name == "_local_scalar_dense",
            name in FRESH,
        )
    return known


def flat(values: Iterable[Any], out: list[torch.Tensor]) -> list[torch.Tensor]:
    """Appends the tensors in `values`, and in lists and tuples in it, to `out`."""
    for v in values:
        if isinstance(v, torch.Tensor):
            out.append(v)
        elif isinstance(v, (list, tuple)):
            flat(v, out)
    return out


def written(info: OpInfo, args: Any, kwargs: dict[str, Any], out: Any) -> list[torch.Tensor]:
    """The tensors that an operator returned, or if it returned none, wrote into."""
    if found := flat((out,), []):
        return found
    return flat([*(args[i] for i in info.mutates if i < len(args)), *(kwargs.get(name) for name in info.out)], [])


_CANONICAL = {
    "to_copy": "to",
    "cdist_forward": "cdist",
    "native_batch_norm": "batch_norm",
    "native_group_norm": "group_norm",
    "native_layer_norm": "layer_norm",
    "fused_rms_norm": "rms_norm",
    "linalg_vector_norm": "norm",
    "safe_softmax": "softmax",
    "weight_norm_interface": "weight_norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
}


def canonical(name: str) -> str:
    """The public name of an aten operator: `_softmax` -> softmax, `addcdiv_` -> addcdiv."""
    short = name.strip("_")
    if short.startswith("scaled_dot_product"):
        return "scaled_dot_product_attention"
    return _CANONICAL.get(short, short.removeprefix("foreach_"))
