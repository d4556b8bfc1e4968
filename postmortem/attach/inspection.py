"""`postmortem.inspect`: statistics of tensors as a DataFrame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
import torch

from postmortem.core.errors import UsageError
from postmortem.replay.trace.tensors import shape_of, values_of

_NUMBERS = ("mean", "std", "min", "max", "zeros", "nan", "inf")
_COUNTS = ("zeros", "nan", "inf")
_COLUMNS = ("name", "kind", "shape", "dtype", "device", "strides", "bytes", *_NUMBERS)


def inspect(
    what: torch.Tensor | torch.nn.Module | torch.optim.Optimizer | Mapping[str, Any] | Iterable[Any],
    *,
    gradients: bool = False,
) -> pd.DataFrame:
    """Statistics of tensors as a DataFrame, one row per tensor.

    what: a tensor; a module (its parameters and buffers); an optimizer (its parameters and state); a mapping of names
    to tensors, such as a state_dict; or an iterable of tensors or (name, tensor) pairs, such as
    ``model.named_parameters()``. gradients: describe the gradients instead of the tensors; a tensor that requires a
    gradient and has none gets a row without numbers.

    Columns: name, kind ("parameter", "buffer", "gradient", "state", "tensor"), shape, dtype, device, strides, bytes;
    mean, std (population), min and max over the finite values; numbers of zeros, nan and inf. For a complex tensor the
    statistics are over its real and imaginary parts, for a sharded one over this rank's shard; an empty tensor has the
    counts only, which are 0. Tensors are reduced on
    their device, and the results are copied once per device, which is the only synchronisation with a GPU. Raises
    UsageError for any other input.

    >>> import torch
    >>> import postmortem
    >>> postmortem.inspect(torch.tensor([1.0, 3.0, float("nan")]))[["mean", "max", "nan"]].values.tolist()
    [[2.0, 3.0, 1]]
    """
    rows, measured = [], []
    for name, kind, tensor in _tensors(what):
        shown: torch.Tensor | None = tensor
        if gradients:
            if not (tensor.requires_grad or tensor.grad is not None):
                continue
            kind, shown = "gradient", tensor.grad
        rows.append({"name": name, "kind": kind, **_facts(shown if shown is not None else tensor)})
        measured.append(_numbers(shown) if shown is not None else None)
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    numbers = pd.DataFrame(_fetched(measured), columns=list(_NUMBERS), index=frame.index, dtype="float64")
    frame[list(_NUMBERS)] = numbers
    return frame.astype(dict.fromkeys(_COUNTS, "Int64"))


def _tensors(what: Any) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(name, kind, tensor) of all that is meant."""
    if isinstance(what, torch.Tensor):
        yield "", "parameter" if isinstance(what, torch.nn.Parameter) else "tensor", what
    elif isinstance(what, torch.nn.Module):
        yield from ((name, "parameter", p) for name, p in what.named_parameters())
        yield from ((name, "buffer", b) for name, b in what.named_buffers())
    elif isinstance(what, torch.optim.Optimizer):
        yield from _of_optimizer(what)
    elif isinstance(what, Mapping):
        yield from _named(what.items())
    elif isinstance(what, Iterable) and not isinstance(what, (str, bytes)):
        yield from _named(v if _is_pair(v) else (str(i), v) for i, v in enumerate(what))
    else:
        kinds = "a tensor, a module, an optimizer, a mapping of names to tensors or several tensors"
        raise UsageError(f"inspect takes {kinds}, not {type(what).__name__}")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _named(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, value in items:
        if isinstance(value, torch.Tensor):
            yield str(name), "parameter" if isinstance(value, torch.nn.Parameter) else "tensor", value
        elif isinstance(value, Mapping):  # as in a checkpoint of a model and its optimizer
            yield from ((f"{name}.{inner}", kind, t) for inner, kind, t in _named(value.items()))


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, torch.Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"group{g}.{i}" for i in range(len(group["params"]))]
        for name, p in zip(names, group["params"], strict=True):
            yield name, "parameter", p
            held = optimizer.state.get(p, {})
            yield from ((f"{name}.{k}", "state", v) for k, v in held.items() if isinstance(v, torch.Tensor))


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    """What is known without reading values; bytes are those of its elements, not of a memory that it is a view of."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return {
        "shape": shape_of(tensor),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "strides": tensor.stride() if strided else None,
        "bytes": tensor.numel() * tensor.element_size(),
    }


@torch.no_grad()
def _numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """float64[7] on the tensor's device, in the order of `_NUMBERS`; None where there is nothing to read."""
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if tensor.is_meta or tensor.is_quantized:
        return None
    if not tensor.numel():
        return torch.tensor([math.nan] * 4 + [0.0] * 3, dtype=torch.float64)
    v = values_of(tensor)
    if not v.numel():
        return None
    v = v if v.is_floating_point() else v.to(torch.float64)
    good = torch.isfinite(v)
    zeros, nan = (v == 0).sum(), torch.isnan(v).sum()
    count = good.sum().double()
    some = count > 0
    mean = torch.where(good, v, 0).sum(dtype=torch.float64) / count
    # about the mean, so that a large offset does not swallow the spread
    spread = torch.where(good, v.double() - mean, 0).square().sum() / count
    least = torch.where(good, v, torch.inf).amin()
    most = torch.where(good, v, -torch.inf).amax()
    inf = v.numel() - count - nan
    low, high = (torch.where(some, x.double(), torch.nan) for x in (least, most))
    return torch.stack([x.double() for x in (mean, spread.sqrt(), low, high, zeros, nan, inf)])


def _fetched(measured: list[torch.Tensor | None]) -> list[list[float]]:
    """The numbers as rows, NaN where there are none: one copy per device."""
    rows = [[math.nan] * len(_NUMBERS) for _ in measured]
    by_device: dict[torch.device, list[int]] = {}
    for i, values in enumerate(measured):
        if values is not None:
            by_device.setdefault(values.device, []).append(i)
    for which in by_device.values():
        several = torch.stack([values for i in which if (values := measured[i]) is not None])
        for i, row in zip(which, several.tolist(), strict=True):
            rows[i] = row
    return rows
