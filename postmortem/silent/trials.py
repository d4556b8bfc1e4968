"""What is tried against a silent fault: the program runs once more with a change, and the losses of both runs are
compared.

A fault declares its `Trial` in its own file. `start` is called in the process of the program once torch is imported and
changes what torch does; the program itself stays as it is.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from postmortem.core.blame import Check
from postmortem.silent.facts import Backward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_FEW = 10
_SHARE = 0.2
_CLEARLY = 0.05
_MOSTLY = 0.8
"""Of the pairs of a last loss with the change and one without it, so many have to be lower with it."""


Start = Callable[[Callable[[], None]], None]


@dataclass(frozen=True)
class Trial:
    """what: the change, in a few words. start(used): makes it, and calls `used` whenever it has had an effect; without
    one the trial proves nothing. by: what shows a cure: a loss that ends lower, or, where the loss of the training
    says nothing of it, that the fault is not observed any more."""

    what: str
    start: Start
    by: Literal["loss", "fault"] = "loss"


def losses_get(change: Callable[[Any, Any], tuple[Any, Any] | None], *names: str) -> Start:
    """These functions of torch.nn.functional are called with the input and target that `change(input, target)`
    returns, unless that is None."""

    def start(used: Callable[[], None]) -> None:
        from torch.nn import functional  # in the process of the program; the judging side needs no torch

        for name in names:
            setattr(functional, name, _instead(getattr(functional, name), change, used))

    return start


def _instead(original: Any, change: Callable[[Any, Any], tuple[Any, Any] | None], used: Callable[[], None]) -> Any:
    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("input", "target"), args, strict=False)) | kwargs
        other = change(given["input"], given["target"]) if {"input", "target"} <= given.keys() else None
        if other is None:
            return original(*args, **kwargs)
        used()
        return original(*other, *args[2:], **{k: v for k, v in kwargs.items() if k not in ("input", "target")})

    return changed


def at_steps(change: Callable[[Any], bool], *, after: bool = False) -> Start:
    """`change(optimizer)` is called before (or after) each step of an optimizer; true: it had an effect."""

    def start(used: Callable[[], None]) -> None:
        from torch.optim import optimizer as optimizers

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if change(optimizer):
                used()

        register = (
            optimizers.register_optimizer_step_post_hook if after else optimizers.register_optimizer_step_pre_hook
        )
        register(hook)

    return start


def without_clipping(used: Callable[[], None]) -> None:
    """A `Start`: gradients keep their norms and values."""
    from torch.nn import utils

    norm_of = utils.clip_grad_norm_

    def by_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        used()
        return norm_of(parameters, math.inf, *args, **kwargs)

    def by_value(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        used()

    utils.clip_grad_norm_ = utils.clip_grad.clip_grad_norm_ = by_norm
    utils.clip_grad_value_ = utils.clip_grad.clip_grad_value_ = by_value


def on_master_copies(used: Callable[[], None]) -> None:
    """A `Start`: an optimizer updates fp32 copies of parameters in half precision, which are rounded after the step."""
    import torch

    masters: dict[torch.Tensor, torch.Tensor] = {}

    def widen(optimizer: Any) -> bool:
        low = [p for group in optimizer.param_groups for p in group["params"]]
        low = [p for p in low if p.grad is not None and p.dtype in (torch.bfloat16, torch.float16)]
        for p in low:
            gradient, p.grad = p.grad.float(), None  # a gradient has the type of its parameter
            kept[p] = p.dtype
            p.data = masters.get(p, p.detach().float())
            p.grad = gradient
        return bool(low)

    def narrow(optimizer: Any) -> bool:
        for p, dtype in kept.items():
            gradient, p.grad = p.grad, None
            masters[p] = p.data
            p.data = p.data.to(dtype)
            p.grad = None if gradient is None else gradient.to(dtype)
        kept.clear()
        return False

    kept: dict[torch.Tensor, torch.dtype] = {}
    at_steps(widen)(used)
    at_steps(narrow, after=True)(used)


def outcome(
    trial: Trial, without: Sequence[Look], with_it: Sequence[Look], *, used: bool, again: Check | None = None
) -> dict[str, Any]:
    """An entry of `Blame.tried`. cured: whether the loss ended clearly lower, None where that cannot be told (`why`).

    steps: up to which the two runs are compared; loss and loss_without: (first, last), of the last ones their mean.
    again: what the checklist of the changed run says of the fault, for a trial that is judged by it.
    """
    entry: dict[str, Any] = {"what": trial.what, "cured": None}
    if not used:
        return entry | {"why": "the program does not call the torch functions that this changes"}
    if trial.by == "fault":
        if again is None or again.status == "not checked":
            return entry | {"why": "the changed run could not be judged" + (f": {again.detail}" if again else "")}
        return entry | {"cured": again.status == "ok", "observed": again.detail}
    before, after = _losses(without), _losses(with_it)
    steps = sorted(set(before) & set(after))
    if len(steps) < _FEW:
        return entry | {"why": f"fewer than {_FEW} steps can be compared"}
    if all(before[s] == after[s] for s in steps):
        return entry | {"why": f"the losses of the {len(steps)} steps that can be compared are the same with it"}
    last = steps[-max(_FEW // 2, int(_SHARE * len(steps))) :]
    ends, others = ([losses[s] for s in last] for losses in (after, before))
    entry |= {
        "steps": steps[-1] + 1,
        "loss": (after[steps[0]], mean(ends)),
        "loss_without": (before[steps[0]], mean(others)),
    }
    if not all(map(math.isfinite, (*ends, *others))):
        return entry | {"cured": False, "why": "a loss is not finite"}
    gained = mean(others) - mean(ends) > _CLEARLY * abs(mean(others))
    # a loss that jumps up and down has a high mean and many low values
    lower = mean(a < b for a in ends for b in others) > _MOSTLY or max(ends) < mean(others)
    return entry | {"cured": gained and lower}


def _losses(looks: Sequence[Look]) -> dict[int, float]:
    """Step -> the loss of the line that calls backward most often, in the process with the most steps."""
    look = max(looks, key=lambda each: each.steps, default=None)
    if look is None:
        return {}
    passes = [b for b in look.of(Backward) if b.loss is not None]
    lines: Counter[Place | None] = Counter(b.at for b in passes)
    if not lines:
        return {}
    line = lines.most_common(1)[0][0]
    found: dict[int, float] = {}
    for b in passes:
        if b.at == line and b.loss is not None:
            found.setdefault(b.step, b.loss)
    return found


_repeating: Callable[[], None] | None = None
"""Each batch is to be the first one: called when one is."""


def on_one_batch(used: Callable[[], None]) -> None:
    """A `Start`: where gradients are enabled, each batch of a dataset is its first one; so is that of a recipe."""
    global _repeating
    _repeating = used
    import copy

    import torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    readers: Any = _BaseDataLoaderIter
    giving = readers.__next__
    first: dict[int, Any] = {}

    @functools.wraps(giving)
    def __next__(reader: Any) -> Any:  # noqa: N807
        batch = giving(reader)
        if not torch.is_grad_enabled():
            return batch
        used()
        return copy.deepcopy(first.setdefault(id(reader._dataset), batch))

    readers.__next__ = __next__


def as_tried(ask: Callable[[int], Any]) -> Callable[[int], Any]:
    """How batches are to be asked for in this process; `ask(step)` gives those of a recipe."""
    first: list[Any] = []

    def repeated(step: int) -> Any:
        if not first:
            first.append(ask(step))
        if _repeating is not None and first[0] is not None:  # else the step makes its own
            _repeating()
        return first[0]

    return ask if _repeating is None else repeated


CHECKS = {
    "one-batch-overfitted": Trial("each batch of a loader is its first one", on_one_batch),
    "two-runs-agree": Trial("nothing", lambda _: None),
}
"""Trials of the checklist, which are made whether or not a fault was found."""
_AGREE = 30
LENGTHS = {"one-batch-overfitted": 100, "two-runs-agree": _AGREE}
"""The steps of each."""
_LEARNT = 0.5
"""Of the first loss; a batch that is learnt by heart leaves less."""


def overfitted(looks: Sequence[Look], *, used: bool) -> Check:
    """Whether the loss of one batch falls."""
    name, by_step = "one-batch-overfitted", _losses(looks)
    losses = list(by_step.values())
    if not used:
        return Check(name, "not checked", "no batches of a DataLoader or of a recipe are trained on")
    if len(losses) < 2 * _FEW:
        return Check(name, "not checked", f"fewer than {2 * _FEW} losses were seen")
    first, last = mean(losses[:2]), mean(losses[-_FEW // 2 :])
    said = f"trained on one batch for {max(by_step) + 1} steps, the loss goes from {first:.3g} to {last:.3g}"
    if last <= first - (1 - _LEARNT) * abs(first):
        return Check(name, "ok", said)
    return Check(name, "not ok", f"{said}: a model that learns would fit it")


def agree(looks: Sequence[Look], again: Sequence[Look]) -> Check:
    """Whether the losses of two runs are the same."""
    name, one, other = "two-runs-agree", _losses(looks), _losses(again)
    steps = sorted(set(one) & set(other))[:_AGREE]
    if len(steps) < 2:
        return Check(name, "not checked", "fewer than 2 steps can be compared")
    apart = next((s for s in steps if one[s] != other[s] and not (math.isnan(one[s]) and math.isnan(other[s]))), None)
    if apart is None:
        return Check(name, "ok", f"the first {len(steps)} losses are the same in a second run, bit for bit")
    said = f"from step {apart} on the losses of a second run differ"
    return Check(name, "not ok", f"{said}: {one[apart]:.6g}, {other[apart]:.6g}")
