"""What trials change in torch's loaders: each function here is a `Start` of a `Trial`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable


def shuffled(used: Callable[[], None]) -> None:
    """Loaders that read a dataset in its order read it in a random one."""
    from torch.utils.data import DataLoader, IterableDataset

    making: Any = DataLoader.__init__

    @functools.wraps(making)
    def __init__(self: Any, dataset: Any, batch_size: Any = 1, shuffle: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        own = args or kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None
        if not (shuffle or own or isinstance(dataset, IterableDataset)):
            shuffle = True
            used()
        making(self, dataset, batch_size, shuffle, *args, **kwargs)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def going_on(used: Callable[[], None]) -> None:
    """A loader that is iterated anew before it came to its end gives its next batch, not its first one."""
    from torch.utils.data import DataLoader

    beginning: Any = DataLoader.__iter__
    begun: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(beginning)
    def __iter__(self: Any) -> Any:  # noqa: N807
        reader: Any = begun.get(self)
        try:
            over = reader is None or reader._num_yielded >= len(self)
        except TypeError:  # of unknown length
            over = True
        if over:
            reader = begun[self] = beginning(self)
        elif reader._num_yielded:
            used()
        return reader

    DataLoader.__iter__ = __iter__  # type: ignore[method-assign]


def seeded_workers(used: Callable[[], None]) -> None:
    """Each worker of a loader seeds the generators that its dataset holds by its own seed."""
    from torch.utils.data import DataLoader

    making: Any = DataLoader.__init__

    @functools.wraps(making)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        making(self, *args, **kwargs)
        if self.num_workers > 1:
            self.worker_init_fn = functools.partial(_begin, self.worker_init_fn, used)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def _begin(own: Any, used: Callable[[], None], worker: int) -> None:
    """In the worker, in the place of the function `own` that the program gave."""
    import random

    import numpy as np
    import torch

    if own is not None:
        own(worker)
    dataset: Any = torch.utils.data.get_worker_info().dataset  # type: ignore[union-attr]
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
    for owner in (dataset, getattr(dataset, "dataset", None)):
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if isinstance(value, torch.Generator):
                value.manual_seed(seed)
            elif isinstance(value, (random.Random, np.random.RandomState)):
                value.seed(seed)
            elif isinstance(value, np.random.Generator):
                setattr(owner, name, np.random.default_rng(seed))
    used()
