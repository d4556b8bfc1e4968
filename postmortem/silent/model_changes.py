"""What trials change in what a model computes: each function here is a `Start` of a `Trial`."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from postmortem.silent.trials import at_steps

if TYPE_CHECKING:
    from collections.abc import Callable

_BOUNDED = ("relu", "sigmoid", "tanh")
_LOSSES = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "cross_entropy",
    "binary_cross_entropy_with_logits",
)
_WIDTH = 4
"""A layer with fewer outputs may be the last one, whose sigmoid is meant."""
_HIDDEN = -1e4
"""A score that hides a position."""
_LARGE = 2.0
"""A norm of a unit's weights that is meant to be about 0.6, as torch begins."""


def without_last_activation(used: Callable[[], None]) -> None:
    """A model returns, and a loss gets, what its last ReLU, sigmoid or tanh was given."""
    from torch.nn import functional

    given: deque[tuple[weakref.ref[Any], Any]] = deque(maxlen=8)

    def before(output: Any) -> Any:
        """What made it, in its shape, if that was one of these functions; None for others."""
        for made, earlier in reversed(given):
            one = made()
            if one is output or (one is not None and getattr(output, "_base", None) is one):
                same = getattr(output, "shape", None)
                return earlier.reshape(same) if same is not None and earlier.numel() == same.numel() else None
        return None

    def noted(function: Any) -> Any:
        @functools.wraps(function)
        def bounded(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's own name
            output = function(input, *args, **kwargs)
            if output is not input:
                given.append((weakref.ref(output), input))
            return output

        return bounded

    def freed(loss: Any) -> Any:
        @functools.wraps(loss)
        def of_logits(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's own name
            earlier = before(input)
            if earlier is not None:
                used()
            return loss(input if earlier is None else earlier, *args, **kwargs)

        return of_logits

    _everywhere(_BOUNDED, noted)
    for name in _LOSSES:
        setattr(functional, name, freed(getattr(functional, name)))
    _at_the_end(before, used)


def _at_the_end(instead: Callable[[Any], Any], used: Callable[[], None]) -> None:
    """What the outermost module returns is replaced by `instead` of it, unless that is None."""
    from torch.nn.modules import module as modules

    depth = [0]

    def enter(module: Any, args: Any) -> None:
        depth[0] += 1

    def leave(module: Any, args: Any, output: Any) -> Any:
        depth[0] -= 1
        other = instead(output) if not depth[0] else None
        if other is not None:
            used()
        return other

    modules.register_module_forward_pre_hook(enter)
    modules.register_module_forward_hook(leave, always_call=True)


def _everywhere(names: tuple[str, ...], change: Callable[[Any], Any]) -> None:
    """Functions of these names are replaced in torch, in torch.nn.functional and as methods."""
    import torch
    from torch.nn import functional

    for owner in (torch, functional, torch.Tensor):
        for name in names:
            setattr(owner, name, change(getattr(owner, name)))


def rectified(used: Callable[[], None]) -> None:
    """A ReLU in the place of the sigmoid or tanh of a wide layer."""
    import torch

    def wide(function: Any) -> Any:
        @functools.wraps(function)
        def cut(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's own name
            if input.dim() < 2 or input.shape[-1] < _WIDTH:
                return function(input, *args, **kwargs)
            used()
            return torch.clamp(input, min=0)

        return cut

    _everywhere(("sigmoid", "tanh"), wide)


def usual_initials(used: Callable[[], None]) -> None:
    """Weights of a size at which a layer saturates begin as torch's own do, and the biases that belong to them at 0."""
    import torch

    seen: set[int] = set()

    def begin(optimizer: Any) -> bool:
        new = [] if id(optimizer) in seen else [p for group in optimizer.param_groups for p in group["params"]]
        seen.add(id(optimizer))
        changed = None
        for p in new:
            if p.dim() > 1 and float(p.detach().flatten(1).norm(dim=1).mean()) > _LARGE:
                torch.nn.init.kaiming_uniform_(p, a=5**0.5)
                changed = p
            elif changed is not None and p.dim() == 1 and len(p) == len(changed):
                torch.nn.init.zeros_(p)
        return changed is not None

    at_steps(begin)(used)


def counted(used: Callable[[], None]) -> None:
    """A table that is read at one place for all tokens is read at 0, 1, 2, ... instead."""
    import torch
    from torch.nn import functional

    reading = functional.embedding

    @functools.wraps(reading)
    def embedding(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's own name
        length = input.shape[-1] if input.dim() else 0
        if 1 < length <= len(weight) and bool((input == input.reshape(-1)[0]).all()):
            used()
            input = torch.arange(length, device=input.device).expand_as(input)  # noqa: A001
        return reading(input, weight, *args, **kwargs)

    functional.embedding = embedding


def masks_turned(used: Callable[[], None]) -> None:
    """Attention reads the positions that the mask of the padding hides, and no others."""
    import torch
    from torch.nn import functional

    attending, scaled = functional.multi_head_attention_forward, functional.scaled_dot_product_attention

    @functools.wraps(attending)
    def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("key_padding_mask")
        if mask is not None:
            used()
            kwargs["key_padding_mask"] = ~mask if mask.dtype == torch.bool else (mask == 0) * _HIDDEN
        return attending(*args, **kwargs)

    @functools.wraps(scaled)
    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if _of_padding(attn_mask):
            used()
            attn_mask = ~attn_mask
        return scaled(query, key, value, attn_mask, *args, **kwargs)

    def filled(function: Any) -> Any:
        @functools.wraps(function)
        def masked_fill(scores: Any, mask: Any, value: Any) -> Any:
            turned = _of_padding(mask) and not isinstance(value, torch.Tensor) and value <= _HIDDEN
            if turned:
                used()
            return function(scores, ~mask if turned else mask, value)

        return masked_fill

    functional.multi_head_attention_forward = multi_head_attention_forward
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    for owner, name in ((torch, "masked_fill"), (torch.Tensor, "masked_fill"), (torch.Tensor, "masked_fill_")):
        setattr(owner, name, filled(getattr(owner, name)))


def _of_padding(mask: Any) -> bool:
    """Whether a mask is the same for all queries."""
    import torch

    return isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() > 2 and mask.shape[-2] == 1


def loaded_by_ending(used: Callable[[], None]) -> None:
    """Weights of a checkpoint whose names lack a prefix, or have one more, are loaded."""
    import torch

    loading: Any = torch.nn.Module.load_state_dict

    @functools.wraps(loading)
    def load_state_dict(self: Any, state: Any, strict: bool = True, *args: Any, **kwargs: Any) -> Any:
        own = self.state_dict()
        matching = {n: t for n, t in state.items() if n in own}
        found = {} if matching else _by_ending(own, state)
        if found:
            used()
        return loading(self, found or state, strict and not found, *args, **kwargs)

    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign,assignment]


def _by_ending(own: Any, state: Any) -> dict[str, Any]:
    """The tensors of a checkpoint, by the only name of the module that ends as theirs does, or the other way."""
    found: dict[str, Any] = {}
    for name, tensor in own.items():
        alike = [
            given
            for given, other in state.items()
            if (f".{name}".endswith(f".{given}") or f".{given}".endswith(f".{name}"))
            and getattr(other, "shape", None) == tensor.shape
        ]
        if len(alike) == 1:
            found[name] = state[alike[0]]
    return found
