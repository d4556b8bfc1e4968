"""Tensors that are sharded among ranks (DTensor), of which a checkpoint may hold the whole."""

from __future__ import annotations

from typing import Any

import torch


def is_sharded(t: Any) -> bool:
    """True for a DTensor, as FSDP2 makes of parameters."""
    return isinstance(t, torch.Tensor) and hasattr(t, "device_mesh") and hasattr(t, "placements")


def sharded_as(target: Any, value: Any) -> Any:
    """`value`, a whole tensor, sharded as `target` is; `value` itself if `target` is not, or has another shape. All
    ranks have to call it together."""
    whole = isinstance(value, torch.Tensor) and not is_sharded(value)
    if not whole or not is_sharded(target) or value.shape != target.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
