"""Wraps the models of a program without DDP in DistributedDataParallel: two copies of the program, over gloo.

The models are not wrapped, as the program calls them itself: DDP's reducer listens at the parameters, and is told of
each backward pass before it begins.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from postmortem.core.errors import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from postmortem.replay.trace.producers import GradientWatch

_PATIENCE = timedelta(seconds=40)


class Replicas:
    """Prepares DDP for each backward pass. Where that fails it is noted, and the program goes on without."""

    def __init__(self, folder: Path, rank: int, ranks: int, as_view: bool, note: Callable[[str], None]) -> None:
        self._store, self._rank, self._ranks = folder / "store", rank, ranks
        self._as_view, self._note = as_view, note
        self._wrapped: dict[int, Any] = {}
        self._failed = False

    def prepare(self, watch: GradientWatch, tensors: list[torch.Tensor], models: Iterable[torch.nn.Module]) -> None:
        """Before a backward pass from `tensors`. models: those of the program, none of which contains another."""
        if self._failed:
            return
        try:
            self._prepare(watch, tensors, list(models))
        except Exception as error:  # noqa: BLE001 - the trial goes on without it, and says so
            self._failed = True
            self._note(f"no DistributedDataParallel in the trial: {described(error)}")

    def _prepare(self, watch: GradientWatch, tensors: list[torch.Tensor], models: list[torch.nn.Module]) -> None:
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                init_method=f"file://{self._store}",
                rank=self._rank,
                world_size=self._ranks,
                timeout=_PATIENCE,
            )
        if dist.get_world_size() != self._ranks:
            raise RuntimeError("the program has a process group of its own")
        reached = {id(p) for p in watch.parameters}
        for model in models:
            used = watch.reentrant or any(id(p) in reached for p in model.parameters())
            if id(model) not in self._wrapped and used and any(p.requires_grad for p in model.parameters()):
                self._wrapped[id(model)] = DistributedDataParallel(
                    model,
                    init_sync=False,
                    find_unused_parameters=not watch.reentrant,
                    gradient_as_bucket_view=self._as_view,
                )
            if used and id(model) in self._wrapped:
                reducer = self._wrapped[id(model)].reducer
                reducer._rebuild_buckets()
                reducer.prepare_for_backward([] if watch.reentrant else tensors)
