"""Running a step in another precision: its state, the explicit casts in its code, the noise that it draws."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from postmortem.replay.step.function_mode import StepMode
from postmortem.replay.step.state import plain_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable

Precision = Literal["fp32", "fp64", "bf16"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def cast(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`t` in the real type `dtype`; a complex tensor in the complex type of that precision, integers unchanged."""
    if t.is_complex():
        return t.to(_COMPLEX.get(dtype, t.dtype))
    return t.detach().to(dtype).requires_grad_(t.requires_grad) if t.is_floating_point() else t


def _cast_held(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its tensors in `dtype`. Lists, deques and dicts keep their identity, as others may hold them."""
    if isinstance(value, torch.Tensor):
        return cast(value, dtype) if value.is_leaf else value
    if isinstance(value, dict):
        for k, v in list(value.items()):
            value[k] = _cast_held(v, dtype)  # one by one: the update of a Counter adds
    elif isinstance(value, (list, deque)):
        for i, v in enumerate(value):
            value[i] = _cast_held(v, dtype)
    elif type(value) is tuple:
        return tuple(_cast_held(v, dtype) for v in value)
    return value


def cast_state(
    models: Iterable[torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    dtype: torch.dtype,
    others: Iterable[Any] = (),
) -> None:
    """Casts parameters, buffers, tensors in plain attributes (queues, averages) and optimizer state to `dtype`, and
    drops gradients. `others`: what else the step holds; its small tensors are cast."""
    with torch.no_grad():
        for m in (m for model in models for m in model.modules()):
            for t in m._parameters.values():
                if t is not None:
                    t.grad = None
                    t.data = cast(t.data, dtype)
            for name, value in list(m._buffers.items()):
                m._buffers[name] = _cast_held(value, dtype)
            for name, value in plain_attributes(m).items():
                vars(m)[name] = _cast_held(value, dtype)
        for other in others:
            for name, value in plain_attributes(other, small=True).items():
                vars(other)[name] = _cast_held(value, dtype)
        for optimizer in optimizers:
            for state in optimizer.state.values():
                for key, value in list(state.items()):
                    if isinstance(value, torch.Tensor) and key != "step":
                        state[key] = cast(value, dtype)


_ORDER = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating types from narrow to wide; casts to narrower ones are deliberate quantisation."""
_CASTS = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "cfloat": torch.complex64}


class CastsFollow(StepMode):
    """While active, casts to a floating type narrower than `dtype`, and tensors created in one, use `dtype`.

    For steps rerun in another precision than their code names (`x.half()`, `dtype=torch.float32`).
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        narrower = _ORDER[: _ORDER.index(dtype)] if dtype != torch.bfloat16 else (torch.float16,)
        self._instead: dict[Any, torch.dtype] = dict.fromkeys(narrower, dtype)
        if dtype == torch.float64:
            self._instead[torch.complex64] = torch.complex128

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The call with casts to the other precision."""
        named = _CASTS.get(getattr(func, "__name__", ""))
        if named in self._instead:
            return torch.Tensor.to, (args[0], self._instead[named]), kwargs
        if any(isinstance(a, torch.dtype) for a in (*args, *kwargs.values())):
            args = tuple(self._instead.get(a, a) if isinstance(a, torch.dtype) else a for a in args)
            kwargs = {k: self._instead.get(v, v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()}
        return func, args, kwargs


_aten = torch.ops.aten
_NEW_NOISE = {
    *(_aten.rand, _aten.randn, _aten.rand_like, _aten.randn_like, _aten.normal, _aten.bernoulli, _aten.poisson),
    *(_aten.multinomial, _aten._standard_gamma, _aten._sample_dirichlet),
}
_NOISE_IN_PLACE = {_aten.normal_, _aten.uniform_, _aten.exponential_, _aten.log_normal_, _aten.cauchy_}


class NoiseStays(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, noise is drawn in single precision and then cast.

    Generators give other numbers in other precisions, which would seem to cure a fault that needs these very numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in _NOISE_IN_PLACE and _other(args[0].dtype):
            args[0].copy_(func(torch.empty_like(args[0], dtype=torch.float32), *args[1:], **kwargs))
            return args[0]
        if func.overloadpacket in _NEW_NOISE:
            given = next((a for a in args if isinstance(a, torch.Tensor)), None)
            wanted = kwargs.get("dtype") or (torch.get_default_dtype() if given is None else given.dtype)
            if _other(wanted):
                args = [cast(a, torch.float32) if isinstance(a, torch.Tensor) else a for a in args]
                drawn = func(
                    *args, **(kwargs | {"dtype": torch.float32} if "dtype" in kwargs or given is None else kwargs)
                )
                return cast(drawn, wanted)
        return func(*args, **kwargs)


def _other(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype != torch.float32
