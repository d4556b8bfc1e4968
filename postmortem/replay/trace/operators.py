"""What is known of an aten operator from its schema and its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WRITES_OVER = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"}
FRESH = {"lift_fresh", "lift_fresh_copy", "lift"}
ABSORBERS = {"logsumexp", "logaddexp", "logcumsumexp", "amax", "amin", "max", "min", "aminmax", "maximum", "minimum", "fmax", "fmin"}
"""Operators that masks of infinities are made for: they come out finite unless everything is masked."""
LOGARITHMS = {"log", "log2", "log10", "log1p"}
PRODUCTS = {"mul", "div", "reciprocal", "pow"}
"""With an infinite number they make no mask: zero times infinity is NaN."""
MAKERS = {"full", "full_like", "fill", "fill_", "new_full", "scalar_tensor", "masked_fill", "masked_fill_", "constant_pad_nd"}


@dataclass(frozen=True, slots=True)
class OpInfo:
    name: str
    mutates: tuple[int, ...]
    untold: tuple[int, ...]
    """Arguments that are written although the schema does not say so: the running statistics of batch norms."""
    out: frozenset[str]
    """Keyword arguments that are only written (`out=`)."""
    view: bool
    unset: bool
    """The output is memory as it was (`empty`), or zeros or ones: nothing to look at."""
    item: bool
    fresh: bool


infos: dict[Any, OpInfo] = {}


def info_of(func: Any) -> OpInfo:
    known = infos.get(func)
    if known is None:
        name = func._schema.name.rpartition("::")[2]
        arguments = list(enumerate(func._schema.arguments))
        written = [(i, a) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
        untold = tuple(i for i, a in arguments if a.name in ("running_mean", "running_var")) if "batch_norm" in name and not written else ()
        known = infos[func] = OpInfo(
            name,
            tuple(i for i, a in written if not a.kwarg_only) or untold,
            untold,
            frozenset(a.name for _, a in written if a.kwarg_only),
            not written and name not in FRESH and any(a.alias_info is not None for a in func._schema.returns),
            name.startswith(("empty", "new_empty", "zeros", "new_zeros", "ones", "new_ones")),
            name == "_local_scalar_dense",
            name in FRESH,
        )
    return known


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
