"""Non-finite values in tensors, statistics and norms, and which tensors share memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

NAN, POS, NEG = 1, 2, 4
INF = POS | NEG
"""Bits for the kinds of non-finite values."""


NO_MEMORY = 1
"""Storage key of empty and meta tensors, and of autograd's zero tensors without memory: reading those crashes."""
_COMPUTABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def local(t: torch.Tensor) -> torch.Tensor:
    """Of a sharded tensor (DTensor) this rank's part, which may be empty: to read the whole is a collective."""
    return t if type(t) in _PLAIN else getattr(t, "_local_tensor", t)


def values_of(t: torch.Tensor, *, coalesced: bool = False) -> torch.Tensor:
    """The numbers of a tensor as a real, dense one: the values of a sparse tensor, both parts of a complex one.

    coalesced: add up the values of a sparse COO tensor that have the same index, as a norm needs it.
    """
    t = local(t)
    if t._is_zerotensor():
        return torch.zeros(t.shape, device=t.device)
    if t.is_nested and t.layout == torch.strided:
        return torch.cat([part.reshape(-1) for part in t.unbind()])
    if t.layout == torch.sparse_coo:
        t = t.coalesce().values() if coalesced else t._values()
    elif t.layout != torch.strided:
        t = t.to_dense() if t.is_mkldnn else t.values()
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj())
    return t.float() if t.is_floating_point() and t.dtype not in _COMPUTABLE else t


def shape_of(t: torch.Tensor) -> tuple[int, ...]:
    """The shape; () of a nested tensor, which has none."""
    return () if t.is_nested else tuple(t.shape)


def has_rows(t: torch.Tensor) -> bool:
    """True if positions in `t` have indices: it is dense and has at least one dimension."""
    return t.layout == torch.strided and not t.is_nested and t.dim() > 0


def storage_key(t: torch.Tensor) -> int:
    """A positive number, equal for tensors that share memory; NO_MEMORY if there is none to share."""
    t = local(t)
    try:
        if t.layout != torch.strided:
            t = t._values() if t.layout == torch.sparse_coo else t.values()
        return t.untyped_storage().data_ptr() or NO_MEMORY
    except RuntimeError:  # torch has no storage for this layout, or for what a transform wraps
        return NO_MEMORY


def sum_of(t: torch.Tensor) -> torch.Tensor:
    """The sum, finite only if all terms are; half precision is summed in single precision."""
    t = local(t)
    return t.sum(dtype=torch.float32) if t.dtype in (torch.float16, torch.bfloat16) else t.sum()


def exact_bits(t: torch.Tensor) -> int:
    """Which kinds of non-finite values `t` holds: NAN | POS | NEG."""
    t = values_of(t.detach())
    if not t.is_floating_point() or not t.numel():
        return 0
    low, high = torch.aminmax(t)
    lo, hi = low.item(), high.item()
    if math.isnan(lo) or math.isnan(hi):
        return NAN | exact_bits(torch.nan_to_num(t, 0.0, math.inf, -math.inf))
    return int(POS * (hi == math.inf) | NEG * (lo == -math.inf))


def statistics(t: torch.Tensor) -> dict[str, Any]:
    """shape, dtype, min and max of the finite values, numbers of zeros, nan and inf, and the index of the first
    non-finite value in row-major order."""
    v = values_of(t.detach())
    out: dict[str, Any] = {"shape": list(shape_of(t)), "dtype": str(t.dtype).removeprefix("torch.")}
    if not v.numel() or v.dtype == torch.bool:
        return out
    if not v.is_floating_point():
        return out | {"min": v.min().item(), "max": v.max().item(), "zeros": int((v == 0).sum())}
    good = torch.isfinite(v)
    finite = v[good]
    if finite.numel():
        low, high = torch.aminmax(finite)
        out |= {"min": low.item(), "max": high.item()}
    nan = int(torch.isnan(v).sum())
    out |= {"zeros": int((v == 0).sum()), "nan": nan, "inf": int(v.numel() - good.sum()) - nan}
    if not bool(good.all()):
        out["first_bad"] = [int(i) for i in (~good).nonzero()[0]]
    return out


def rows_of(bad: torch.Tensor) -> dict[int, list[int]]:
    """Per dimension of a mask, the indices at which it is true somewhere."""
    return {d: along(bad, d) for d in range(bad.dim())}


def along(bad: torch.Tensor, dim: int) -> list[int]:
    """The indices in dimension `dim` of a mask at which it is true somewhere."""
    found: list[int] = bad.movedim(dim, 0).reshape(bad.shape[dim], -1).any(1).nonzero().flatten().tolist()
    return found


def _norms(tensors: Mapping[str, torch.Tensor], order: float) -> torch.Tensor:
    """The norm of every tensor, float64[n]; integers and empty ones count as 0."""
    by_device: dict[tuple[Any, Any], list[tuple[int, torch.Tensor]]] = {}
    for i, t in enumerate(tensors.values()):
        values = values_of(t.detach(), coalesced=True)
        if values.is_floating_point() and values.numel():
            by_device.setdefault((values.device, values.dtype), []).append((i, values))
    out = torch.zeros(len(tensors), dtype=torch.float64)
    for group in by_device.values():
        rows, members = zip(*group, strict=True)
        out[list(rows)] = torch.stack(torch._foreach_norm(list(members), order)).to("cpu", torch.float64)
    return out


def total_norm(tensors: Mapping[str, torch.Tensor]) -> float:
    """The 2-norm over all `tensors`: inf or NaN if a value is non-finite or a square overflows."""
    return float(_norms(tensors, 2.0).norm()) if tensors else 0.0


def nonfinite_names(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that hold an inf or NaN, in order."""
    largest = _norms(tensors, math.inf)
    return [name for name, ok in zip(tensors, torch.isfinite(largest).tolist(), strict=True) if not ok]
