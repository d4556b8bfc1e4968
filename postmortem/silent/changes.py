"""What trials change in torch: each function here is a `Start` of a `Trial`, or makes one.

They run in the process of the program, whose own code stays as it is; torch is imported there.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from postmortem.silent.trials import at_steps

if TYPE_CHECKING:
    from collections.abc import Callable


_RATE = 1e-3


def with_a_rate(used: Callable[[], None]) -> None:
    """Groups of an optimizer with a learning rate of (practically) 0 step with 0.001; the program sees its own."""
    own: list[tuple[Any, Any]] = []

    def before(optimizer: Any) -> bool:
        own[:] = [(group, group["lr"]) for group in optimizer.param_groups if float(group.get("lr", 1.0)) < 1e-7]
        for group, _ in own:
            group["lr"] = _RATE
        return bool(own)

    def after(optimizer: Any) -> bool:
        for group, rate in own:
            group["lr"] = rate
        own.clear()
        return False

    at_steps(before)(used)
    at_steps(after, after=True)(used)


def gradients_kept(used: Callable[[], None]) -> None:
    """What a backward pass leaves is not cleared before an optimizer has stepped; then it is."""
    import torch

    fresh = [False]
    engine = torch.autograd.backward

    @functools.wraps(engine)
    def backward(*args: Any, **kwargs: Any) -> None:
        engine(*args, **kwargs)
        fresh[0] = True

    torch.autograd.backward = backward
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        setattr(owner, "zero_grad", _unless_fresh(owner.zero_grad, fresh, used))  # noqa: B010 - of two kinds

    def stepped(optimizer: Any) -> bool:
        fresh[0] = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
        return False

    at_steps(stepped, after=True)(used)


def _unless_fresh(clear: Any, fresh: list[bool], used: Callable[[], None]) -> Any:
    @functools.wraps(clear)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        if fresh[0]:
            used()
        else:
            clear(self, *args, **kwargs)

    return zero_grad


def averaged(used: Callable[[], None]) -> None:
    """The gradients of several backward passes before a step are divided by their number."""
    import torch

    passes = [0]
    engine = torch.autograd.backward

    @functools.wraps(engine)
    def backward(*args: Any, **kwargs: Any) -> None:
        engine(*args, **kwargs)
        passes[0] += 1

    torch.autograd.backward = backward

    def divide(optimizer: Any) -> bool:
        several, passes[0] = passes[0], 0
        for group in optimizer.param_groups if several > 1 else ():
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= several
        return several > 1

    at_steps(divide)(used)


def without_scale(used: Callable[[], None]) -> None:
    """A GradScaler steps with gradients as they are, where backward did not start from a scaled loss."""
    import torch

    scaler = torch.amp.GradScaler
    made: deque[Any] = deque(maxlen=16)
    scaled = [True]
    engine, scaling = torch.autograd.backward, scaler.scale

    @functools.wraps(engine)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        scaled[0] = any(known() is t for t in given for known in made)
        engine(tensors, *args, **kwargs)

    @functools.wraps(scaling)
    def scale(self: Any, outputs: Any) -> Any:
        result = scaling(self, outputs)
        made.extend(ref(t) for t in ([result] if isinstance(result, torch.Tensor) else result))
        return result

    def where_scaled(method: Any, instead: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if scaled[0] else instead(*args, **kwargs)

        return called

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        used()
        return optimizer.step(*args, **kwargs)

    torch.autograd.backward, scaler.scale = backward, scale  # type: ignore[method-assign]
    scaler.step = where_scaled(scaler.step, step)  # type: ignore[method-assign]
    scaler.unscale_ = where_scaled(scaler.unscale_, lambda *_: None)  # type: ignore[method-assign]
    scaler.update = where_scaled(scaler.update, lambda *_: None)  # type: ignore[method-assign]


def stepped_after_backward(used: Callable[[], None]) -> None:
    """A step waits for the next backward pass."""
    import torch

    waiting: list[Callable[[], Any]] = []
    making, engine = torch.optim.Optimizer.__init__, torch.autograd.backward

    @functools.wraps(making)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        making(self, *args, **kwargs)
        own = type(self).step

        @functools.wraps(own)
        def step(optimizer: Any, closure: Any = None) -> Any:
            if closure is not None:
                return own(optimizer, closure)
            waiting.append(functools.partial(own, optimizer))
            return None

        self.step = types.MethodType(step, self)  # a scheduler takes a method of it

    @functools.wraps(engine)
    def backward(*args: Any, **kwargs: Any) -> None:
        engine(*args, **kwargs)
        steps, waiting[:] = waiting[:], []
        for step in steps:
            used()
            step()

    torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]
    torch.autograd.backward = backward


def in_training_mode(used: Callable[[], None]) -> None:
    """Modules that run with gradients enabled are in training mode."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    def switch(module: Any, args: Any) -> None:
        if torch.is_grad_enabled() and not module.training:
            module.training = True
            used()

    register_module_forward_pre_hook(switch)


def without_dropout(used: Callable[[], None]) -> None:
    """Dropout passes its input on."""
    from torch.nn import functional

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        setattr(functional, name, _passing_on(getattr(functional, name), used))


def _passing_on(dropout: Any, used: Callable[[], None]) -> Any:
    @functools.wraps(dropout)
    def passed(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's own name
        used()
        return input

    return passed


def standardised(used: Callable[[], None]) -> None:
    """The columns of a model's first input are standardised, by its first batch."""
    import torch
    from torch.nn.modules import module as modules

    scales: dict[int, tuple[Any, Any]] = {}
    depth = [0]

    def enter(module: Any, args: Any) -> Any:
        depth[0] += 1
        first: Any = args[0] if args else None
        table = isinstance(first, torch.Tensor) and first.is_floating_point() and first.dim() == 2
        if depth[0] > 1 or not table or (id(module) not in scales and len(first) < 2):
            return None
        mean, std = scales.setdefault(id(module), (first.mean(0), first.std(0)))
        used()
        return ((first - mean) / torch.where(std > 0, std, torch.ones_like(std)), *args[1:])

    def left(module: Any, args: Any, output: Any) -> None:
        depth[0] -= 1

    modules.register_module_forward_pre_hook(enter)
    modules.register_module_forward_hook(left, always_call=True)


def leaky(used: Callable[[], None]) -> None:
    """A leaky ReLU in the place of each ReLU."""
    import torch
    from torch.nn import functional

    of = functional.leaky_relu

    def relu(input: Any, inplace: bool = False) -> Any:  # noqa: A002 - torch's own name
        used()
        return of(input, 0.01)

    functional.relu = torch.relu = relu
    torch.Tensor.relu = relu  # type: ignore[assignment]


def thawed(used: Callable[[], None]) -> None:
    """What an optimizer is given requires gradients."""
    import torch

    adding = torch.optim.Optimizer.add_param_group

    @functools.wraps(adding)
    def add_param_group(self: Any, group: Any) -> None:
        adding(self, group)
        frozen = [p for p in self.param_groups[-1]["params"] if not p.requires_grad and p.is_floating_point()]
        for p in frozen:
            p.requires_grad_()
            used()

    torch.optim.Optimizer.add_param_group = add_param_group  # type: ignore[method-assign,assignment]


def completed(used: Callable[[], None]) -> None:
    """Parameters that have gradients and that no optimizer holds join the optimizer that steps first."""
    import gc

    import torch

    known: WeakSet[Any] = WeakSet()
    making = torch.optim.Optimizer.__init__

    @functools.wraps(making)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        making(self, *args, **kwargs)
        known.add(self)

    torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]
    done, joined = [False], []

    def join(optimizer: Any) -> bool:
        if done[0]:
            return False
        done[0] = True
        held = {id(p) for each in known for group in each.param_groups for p in group["params"]}
        found = [p for p in gc.get_objects() if issubclass(type(p), torch.nn.Parameter)]
        left = [p for p in found if p.grad is not None and id(p) not in held]
        if left:
            optimizer.add_param_group({"params": left})
        joined.extend(left)
        return bool(left)

    def clear(optimizer: Any) -> bool:
        """The program's own zero_grad may not know them."""
        for p in joined:
            p.grad = None
        return False

    at_steps(join)(used)
    at_steps(clear, after=True)(used)


def apart(used: Callable[[], None]) -> None:
    """Weight matrices whose rows are all equal get random values before the first step."""
    import torch

    seen: set[int] = set()

    def scatter(optimizer: Any) -> bool:
        new = [] if id(optimizer) in seen else [p for group in optimizer.param_groups for p in group["params"]]
        seen.add(id(optimizer))
        same = [p for p in new if p.dim() > 1 and len(p) > 1 and bool((p.detach() == p.detach()[:1]).all())]
        for p in same:
            torch.nn.init.kaiming_uniform_(p, a=5**0.5)
        return bool(same)

    at_steps(scatter)(used)


def without_schedule(used: Callable[[], None]) -> None:
    """Schedulers keep the learning rate that they begin with."""
    from torch.optim import lr_scheduler

    stepping = lr_scheduler.LRScheduler.__init__
    begun: WeakSet[Any] = WeakSet()

    @functools.wraps(stepping)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        stepping(self, *args, **kwargs)
        begun.add(self)
        own = type(self).get_lr

        def get_lr() -> Any:
            if self not in begun:
                return own(self)
            used()
            return [group["lr"] for group in self.optimizer.param_groups]

        self.get_lr = self._get_closed_form_lr = get_lr

    lr_scheduler.LRScheduler.__init__ = __init__  # type: ignore[method-assign]


def softmax_over_last(used: Callable[[], None]) -> None:
    """A softmax over the first dimension of several runs over the last one."""
    import torch
    from torch.nn import functional

    for owner in (functional, torch, torch.Tensor):
        for name in ("softmax", "log_softmax"):
            setattr(owner, name, _over_last(getattr(owner, name), used))


def _over_last(softmax: Any, used: Callable[[], None]) -> Any:
    @functools.wraps(softmax)
    def last(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's own name
        given = kwargs.get("dim", args[0] if args else None)
        if input.dim() < 2 or given not in (0, -input.dim()):
            return softmax(input, *args, **kwargs)
        used()
        return softmax(input, -1, *args[1:], **{k: v for k, v in kwargs.items() if k != "dim"})

    return last


def limit_times_scale(used: Callable[[], None]) -> None:
    """The limit of `clip_grad_norm_` and `clip_grad_value_` is multiplied by the scale of the loss."""
    import torch
    from torch.nn import utils

    scale = [1.0]
    scaling, unscaling = torch.amp.GradScaler.scale, torch.amp.GradScaler.unscale_

    @functools.wraps(scaling)
    def scaled(self: Any, outputs: Any) -> Any:
        scale[0] = float(self.get_scale())
        return scaling(self, outputs)

    @functools.wraps(unscaling)
    def unscale_(self: Any, optimizer: Any) -> None:
        unscaling(self, optimizer)
        scale[0] = 1.0

    torch.amp.GradScaler.scale, torch.amp.GradScaler.unscale_ = scaled, unscale_  # type: ignore[method-assign]
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = _times(getattr(utils, name), scale, used)
        setattr(utils, name, clip)
        setattr(utils.clip_grad, name, clip)


def _times(clip: Any, scale: list[float], used: Callable[[], None]) -> Any:
    @functools.wraps(clip)
    def clipped(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Any:
        if scale[0] != 1.0:
            used()
        return clip(parameters, limit * scale[0], *args, **kwargs)

    return clipped
