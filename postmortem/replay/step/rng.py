"""The states of random generators: captured, compared and restored."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def state_of(generator: Any) -> Any:
    """The state of a generator of one of the classes in GENERATORS."""
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """Restores what `state_of` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = copy.deepcopy(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _same_state(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else repr(a) == repr(b)


@dataclass(slots=True)
class Rng:
    """States of the global generators of torch, of every CUDA device in use, of numpy and of Python; None or empty if
    unknown. `own`: (generator, state) of others."""

    cpu: torch.Tensor | None = None
    cuda: list[torch.Tensor] = field(default_factory=list)
    numpy: Any = None
    python: Any = None
    own: list[tuple[Any, Any]] = field(default_factory=list)

    @classmethod
    def capture(cls, others: Iterable[Any] = ()) -> Rng:
        """The present states of the global generators and of `others`."""
        in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cuda = torch.cuda.get_rng_state_all() if in_use else []
        own = [(g, state_of(g)) for g in others]
        return cls(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate(), own)

    def same(self, other: Rng) -> bool:
        """True if nothing was drawn between the two captures."""
        numpy = all(np.array_equal(a, b) for a, b in zip(self.numpy, other.numpy, strict=True))
        tensors = zip([self.cpu, *self.cuda], [other.cpu, *other.cuda], strict=False)
        own = all(_same_state(a, b) for (_, a), (_, b) in zip(self.own, other.own, strict=False))
        return numpy and own and self.python == other.python and all(_same_state(a, b) for a, b in tensors)

    def restore(self) -> None:
        """Sets every generator whose state is known."""
        if self.cpu is not None:
            torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            for device, state in enumerate(self.cuda[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, device)
        if self.numpy is not None:
            np.random.set_state(self.numpy)
        if self.python is not None:
            random.setstate(self.python)
        for generator, state in self.own:
            set_state(generator, state)
