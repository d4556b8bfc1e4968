"""Changes an arbitrary program in forked children: its updates, its precision, where autocast applies.

What is patched here stays patched, as the child ends with its answer. A process that goes on calls `Changes.undo`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.step.precision import DTYPES, CastsFollow, NoiseStays, cast, cast_state

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from postmortem.attach.standby.program import Program
    from postmortem.replay.step.overrides import Overrides

_AUTOCAST = torch.amp.autocast_mode.autocast
HALF = {torch.float16: "fp16", torch.bfloat16: "bf16"}
"""What autocast may go to, by the names of `Reply.autocast`."""


class Changes:
    """`overrides` for one tick of `program`."""

    def __init__(self, overrides: Overrides, program: Program) -> None:
        self.overrides, self.program = overrides, program
        self._saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._entering, self._default = _AUTOCAST.__enter__, torch.get_default_dtype()
        self._hook: Any = None

    def begin(self) -> list[AbstractContextManager[Any]]:
        """Changes the state at the beginning of the tick; returns the contexts that the tick is run in."""
        o, program = self.overrides, self.program
        if o.fresh_optimizer:
            for optimizer in program.optimizers:
                optimizer.state.clear()
        if o.loss_scale is not None:
            for scaler in program.scalers:
                scaler.load_state_dict({**scaler.state_dict(), "scale": o.loss_scale})
        if o.dtype is None:
            return []
        if o.dtype == "bf16":
            redirect_autocast(torch.bfloat16)
            return []
        dtype = DTYPES[o.dtype]
        redirect_autocast(None)
        cast_state(program.models.values(), program.optimizers, dtype)
        if o.dtype == "fp64":
            torch.set_default_dtype(torch.float64)
        hook: Any = functools.partial(_cast_inputs, dtype)
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(hook)
        return [CastsFollow(dtype), NoiseStays()] if o.casts_follow else [NoiseStays()]

    def cast(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor of the batch in the precision of the tick."""
        dtype = self.overrides.dtype
        return t if dtype in (None, "bf16") else cast(t, DTYPES[dtype])

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Clips the gradients, sets learning rate and eps."""
        o = self.overrides
        if o.clip is not None:
            torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], o.clip)
        for group in optimizer.param_groups if o.lr != 1.0 or o.eps is not None else ():
            self._saved.append((group, {k: group[k] for k in ("lr", "eps") if k in group}))
            if o.lr != 1.0 and "lr" in group:
                group["lr"] = group["lr"] * o.lr
            if o.eps is not None and isinstance(group.get("eps"), (int, float)):
                group["eps"] = max(group["eps"], o.eps)

    def after_update(self) -> None:
        """Sets learning rate and eps back."""
        for group, values in self._saved:
            group.update(values)
        self._saved.clear()

    def undo(self) -> None:
        """Everything is as before, but for the state of the program."""
        _AUTOCAST.__enter__ = self._entering  # type: ignore[method-assign]
        torch.set_default_dtype(self._default)
        if self._hook is not None:
            self._hook.remove()


def _cast_inputs(dtype: torch.dtype, _: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Data that the program made itself, in the type of the model that reads it."""
    return tuple(
        a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() and not a.requires_grad else a
        for a in args
    )


def redirect_autocast(dtype: torch.dtype | None) -> None:
    """From now on autocast goes to `dtype` wherever the program turns it on; None: it stays off."""
    entering: Any = _AUTOCAST.__enter__

    @functools.wraps(entering)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if dtype is None:
            self._enabled = False
        elif self._enabled:
            self.fast_dtype = dtype
        return entering(self)

    _AUTOCAST.__enter__ = __enter__  # type: ignore[method-assign]


def notice_autocast(found: list[torch.dtype]) -> None:
    """Notes in `found` to which types the program casts."""
    entering: Any = _AUTOCAST.__enter__

    @functools.wraps(entering)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if self._enabled and self.fast_dtype not in found:
            found.append(self.fast_dtype)
        return entering(self)

    _AUTOCAST.__enter__ = __enter__  # type: ignore[method-assign]


def operator_by_operator(program: Program) -> None:
    """Fused optimizers update in single operators from now on; a scaler then skips their steps like others'."""
    for optimizer in program.optimizers:
        for group in optimizer.param_groups:
            if group.get("fused"):
                group["fused"] = False
        if vars(optimizer).get("_step_supports_amp_scaling"):
            vars(optimizer)["_step_supports_amp_scaling"] = False
