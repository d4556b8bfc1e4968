"""Padding in batches of token sequences, and whether the targets that count belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.weight_facts import TargetsPadded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.silent.facts import Place

_FEWEST = 4
"""Targets that count, and tokens."""
_AHEAD = range(2)
"""Positions that a target may lie ahead of the output that it is compared with."""


@dataclass
class _Loss:
    """weights: of each target, known after the backward pass where the program reduces the loss itself."""

    target: torch.Tensor
    ignored: int
    at: Place | None
    weights: torch.Tensor | None = None

    def weigh(self, gradient: torch.Tensor) -> None:
        """A hook of the loss of each target: it leaves the gradient as it is."""
        self.weights = gradient.detach()


@dataclass
class CountedTargets:
    """The losses of one backward pass, and the tokens that they were computed of."""

    _losses: list[_Loss] = field(default_factory=list)
    _padding: torch.Tensor | None = None

    def loss(self, target: torch.Tensor, ignored: int, result: Any, at: Place | None) -> None:
        """A cross entropy was computed."""
        made = _Loss(target.detach(), ignored, at)
        self._losses.append(made)
        if isinstance(result, torch.Tensor) and result.shape == target.shape and result.requires_grad:
            tensor: Any = result
            tensor.register_hook(made.weigh)

    def tokens(self, module: torch.nn.Module, kwargs: dict[str, Any], tokens: torch.Tensor) -> None:
        """The module was given these, and `kwargs`."""
        self._padding = _masked(kwargs.get("attention_mask"), tokens)
        if self._padding is None:
            self._padding = padding_of(module, tokens)

    def told(self, step: int) -> Iterator[TargetsPadded]:
        """After the backward pass: what counted."""
        if self._padding is None:
            return
        for loss in self._losses:
            fact = _compared(loss, self._padding, step)
            if fact is not None:
                yield fact


def _compared(loss: _Loss, padding: torch.Tensor, step: int) -> TargetsPadded | None:
    samples, positions = padding.shape
    length, rest = divmod(loss.target.numel(), samples)
    if rest or not positions - 1 <= length <= positions or loss.target.device != padding.device:
        return None
    targets = loss.target.reshape(samples, length)
    counts = targets != loss.ignored
    if loss.weights is not None:
        counts = counts & (loss.weights.reshape(samples, length) != 0)
    counted, tokens = int(counts.sum()), int((~padding).sum())
    if min(counted, tokens) < _FEWEST:
        return None
    # the place of a target is known but for one position: the one with the most padding, as a look is no proof of less
    longer = torch.cat((padding, padding[:, -1:]), 1)  # what comes after the tokens is padding where their last one is
    most = max(int((counts & longer[:, a : a + length]).sum()) for a in _AHEAD)
    values = targets[counts]
    return TargetsPadded(step, counted, most, tokens, bool((values == values[0]).all()), loss.at)


def _masked(mask: Any, tokens: torch.Tensor) -> torch.Tensor | None:
    """Where a mask that the model was given has zeros, if there is only one token: some masks are 1 at padding."""
    if not isinstance(mask, torch.Tensor) or mask.shape != tokens.shape or mask.is_floating_point():
        return None
    hidden = mask == 0
    inside, outside = tokens[hidden], tokens[~hidden]
    if not inside.numel() or not outside.numel() or bool((inside != inside[0]).any()):
        return None
    return hidden if bool((outside != outside[0]).any()) else None


def padding_of(module: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor | None:
    """Where tokens are padding: what an embedding calls so, or the one token that rows end with, and only end."""
    tables = [m for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    own = next((m.padding_idx for m in tables if m.padding_idx is not None), None)
    pad = own if own is not None else int(tokens[:, -1].mode().values)
    is_pad = tokens == pad
    trailing = is_pad.flip(1).cumprod(1).flip(1).bool()
    rows = is_pad.any(1)
    if not bool((trailing == is_pad).all()) or int(rows.sum()) < 2 or bool(is_pad.all()):
        return None
    if own is None and (float(rows.float().mean()) < 0.3 or len(set(trailing.sum(1).tolist())) < 3):
        return None
    return is_pad
