"""The tensors in a batch, whatever holds them: nested dicts, tuples, dataclasses, numpy arrays."""

from __future__ import annotations

import copy
from collections import UserDict, deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMERIC = "fiucb"  # kinds of numpy arrays that torch can hold


def tensor_map(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with `change` applied to every tensor and numeric numpy array in it; containers keep their type.

    Objects that can `clone` themselves (graph batches) are cloned, anything else is passed through.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, np.ndarray):
        return _array(change, value)
    parts = parts_of(value)
    if parts is not None:
        return with_parts(value, {k: tensor_map(change, v) for k, v in parts.items()})
    if isinstance(value, (list, tuple, deque)):
        return type(value)(tensor_map(change, v) for v in value)
    if callable(getattr(value, "clone", None)):
        return value.clone()
    return value


def _array(change: Callable[[torch.Tensor], Any], value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.kind not in _NUMERIC or not value.dtype.isnative:
        return value
    try:
        with _disable_current_modes():  # it shares memory: a tracer that repairs outputs must not see it
            tensor = torch.from_numpy(value if min(value.strides, default=0) >= 0 else value.copy())
    except TypeError:  # a type that torch lacks
        return value.copy()
    changed = change(tensor)
    if changed is tensor:
        return value
    return changed.numpy() if changed.dtype != torch.bfloat16 else changed


def parts_of(value: Any) -> dict[Any, Any] | None:
    """The named parts of a batch: items of a dict, fields of a named tuple, attributes of an object with tensors; else
    None."""
    if isinstance(value, (dict, UserDict)):
        return dict(value.items())
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True)) if hasattr(value, "_fields") else None
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return None
    names = vars(value) if hasattr(value, "__dict__") else getattr(value, "__dataclass_fields__", {})
    found = {name: getattr(value, name, None) for name in names}
    return found if any(isinstance(v, (torch.Tensor, np.ndarray)) for v in found.values()) else None


def with_parts(value: Any, parts: dict[Any, Any]) -> Any:
    """A copy of `value` that holds `parts` under the names that `parts_of` gave."""
    if type(value) is dict:
        return parts
    if isinstance(value, tuple):
        return type(value)(*parts.values())
    other = copy.copy(value)
    if isinstance(value, (dict, UserDict)):
        other.update(parts)
    else:
        for name, part in parts.items():
            object.__setattr__(other, name, part)  # dataclasses may be frozen
    return other


def clone_tensor(t: torch.Tensor) -> torch.Tensor:
    """A detached copy with the same layout, which requires a gradient if the original does."""
    return t.detach().clone().requires_grad_(t.requires_grad)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a batch, in order; numpy arrays as tensors that share their memory."""
    found: list[torch.Tensor] = []
    tensor_map(lambda t: found.append(t) or t, value)  # type: ignore[func-returns-value]
    return found
