"""Checks many tensors in one pass: whether all are finite, and their norms. Results stay on the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def plain(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What of them this rank holds as floating-point numbers."""
    found = []
    for t in tensors:
        local = getattr(t, "_local_tensor", t).detach()
        local = local.coalesce().values() if local.is_sparse else local
        if local.numel() and (local.is_floating_point() or local.is_complex()):
            found.append(local)
    return found


def norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The 2-norm of each as a scalar on its device; the tensors are those of `plain`."""
    found: list[torch.Tensor | None] = [None] * len(tensors)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, t in enumerate(tensors):
        alike.setdefault((t.device, t.dtype), []).append(i)
    with torch.no_grad():
        for (_, dtype), which in alike.items():
            several = [tensors[i] for i in which]
            if dtype in (torch.float16, torch.bfloat16):  # a norm in 16 bits overflows, or stops growing
                values = [torch.linalg.vector_norm(t, dtype=torch.float32) for t in several]
            else:
                values = list(torch._foreach_norm(several))
            for i, value in zip(which, values, strict=True):
                found[i] = value.detach()
    return [value for value in found if value is not None]


def totals(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """For each device one number, which is finite only if all values there are; it may overflow all the same."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    with torch.no_grad():
        for t in plain(tensors):
            by_device.setdefault(t.device, []).append(t)
        found = []
        for device, several in by_device.items():
            if device.type == "cpu":
                sums = [t.sum(dtype=torch.complex64 if t.is_complex() else torch.float32) for t in several]
            else:
                sums = norms(several)  # a few kernels for all of them
            found.append(torch.stack([s.abs() if s.is_complex() else s.float() for s in sums]).sum())
    return found


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """True if every value is finite. Sums first; what overflows a sum is looked at exactly."""
    whole = list(tensors)
    if all(math.isfinite(total.item()) for total in totals(whole)):
        return True
    return all(bool(torch.isfinite(t).all()) for t in plain(whole))
