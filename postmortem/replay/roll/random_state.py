"""The random states that a checkpoint holds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.replay.step.rng import Rng

if TYPE_CHECKING:
    Where = tuple[str, ...]

_CPU_RNG_BYTES = 5056  # torch's mt19937 state on the CPU
NO_RANDOM_STATE = "random state: not in the checkpoint; random numbers (dropout, shuffling) differ from the run's"


class SavedRng(Rng):
    """Random states found in a checkpoint."""

    def restore(self) -> None:
        """Sets every generator to its saved state, else to a fixed seed, so that earlier draws have no effect."""
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        super().restore()

    def names(self) -> list[str]:
        """Names of the generators whose state is known."""
        found = {"cpu": self.cpu is not None, "cuda": bool(self.cuda)}
        found |= {"numpy": self.numpy is not None, "python": self.python is not None}
        return [name for name, known in found.items() if known]


def find_rng(content: Any) -> SavedRng:
    """The random states in a checkpoint, recognised by their form. A data loader's own generator is ignored."""
    found = SavedRng()
    _find_rng(content, (), found, set())
    return found


def _find_rng(value: Any, where: Where, found: SavedRng, seen: set[int]) -> None:
    path = ".".join(where).lower()
    if (
        len(where) > 5
        or id(value) in seen
        or any(word in path for word in ("loader", "sampler", "generator", "dataset"))
    ):
        return
    if "optim" in path and not isinstance(value, dict) and "rng" not in path and "random" not in path:
        return  # an optimizer's own bytes; a file optimizer.pt may hold random states as well
    if isinstance(value, (dict, list, tuple)):
        seen.add(id(value))  # a pickle of a few bytes can hold one dict a million times
    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() == 1:
        if value.numel() == _CPU_RNG_BYTES and found.cpu is None:
            found.cpu = value.clone()
        elif value.numel() in (16, 24) and ("cuda" in path or "rng" in path or "gpu" in path):
            found.cuda.append(value.clone())
    elif isinstance(value, tuple) and len(value) == 5 and value[0] == "MT19937":
        found.numpy = value if found.numpy is None else found.numpy
    elif (
        isinstance(value, (tuple, list))
        and len(value) == 3
        and value[0] == 3
        and isinstance(value[1], (tuple, list))
        and len(value[1]) == 625
    ):
        found.python = (value[0], tuple(value[1]), value[2]) if found.python is None else found.python
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, torch.Tensor) or inner.dtype == torch.uint8:
                _find_rng(inner, (*where, str(key)), found, seen)
    elif isinstance(value, (list, tuple)) and len(value) <= 64:
        for i, inner in enumerate(value):
            _find_rng(inner, (*where, str(i)), found, seen)
