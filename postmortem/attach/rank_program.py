"""One rank of a replay with a recipe that says ``ranks=N``: the steps of the recipe, one after another.

Run as a program by torchrun, under watch as any program is: ``python -m postmortem.attach.rank_program ORDER``, where
ORDER is that of `ranks`, as JSON.
"""

from __future__ import annotations

import datetime
import functools
import json
import operator
import os
import sys
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch  # first: from here on the process is watched
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from postmortem.checkpoints.content import read_saved
from postmortem.core.errors import ReplayError
from postmortem.replay.model import Context
from postmortem.replay.recipe.load import Recipe
from postmortem.replay.recipe.ranks import own_file
from postmortem.replay.roll.restore import Account, load_saved
from postmortem.replay.roll.sharded import is_sharded
from postmortem.replay.roll.start import first_steps
from postmortem.replay.step.batches import clone_tensor, tensor_map
from postmortem.replay.step.errors import exits_are_errors
from postmortem.replay.step.rng import Rng
from postmortem.replay.step.runner import StepRunner, needs_closure

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = datetime.timedelta(seconds=120)
"""How long a rank waits for the others."""


class RankRunner(StepRunner):
    """Runs the steps as a training of several ranks does: gradients are averaged by DDP or FSDP2, else here."""

    def begin(self, first: int) -> None:
        """Before the step `first`."""
        self._batches = iter(DataLoader(_Batches(self, first), batch_size=None, collate_fn=_as_it_is))
        every = [m for model in self.models.values() for m in model.modules()]
        replicated = any(isinstance(m, DistributedDataParallel) for m in every)
        self._plain = not replicated and not any(is_sharded(p) for m in self.models.values() for p in m.parameters())

    def parts(self, step: int) -> list[Any]:
        """The micro-batches of a step. Raises ReplayError if there are no more."""
        batch = tensor_map(clone_tensor, self._ask(step))  # it may come from a loader, whose batches are known already
        return list(self._micro_batches(batch))

    def train(self, step: int) -> bool:
        """One step. False where there is no batch for it."""
        if self.train_step.before_step is not None:
            self.train_step.before_step(step)
        parts: list[Any] = []
        total = 0.0
        for names, function in self._sub_steps():
            optimizers = [self.optimizers[n] for n in names]
            for optimizer in optimizers:
                optimizer.zero_grad()
            single = names[0] if isinstance(self.train_step.step, dict) else "loss"
            for i in range(self.train_step.accumulate):
                if i == len(parts):  # drawn right before its pass; of several sub-steps the first one draws
                    try:
                        parts.append(next(self._batches))
                    except StopIteration:
                        return False
                total += self._pass(function, parts[i], single, last=i == self.train_step.accumulate - 1)
            self._update(names, function, parts, single, total)
        self._after_the_optimizers(total)
        return True

    def _pass(self, function: Any, micro: Any, single: str, *, last: bool) -> float:
        wrapped = [m for m in self.models.values() if isinstance(m, DistributedDataParallel)]
        for model in self.models.values():
            synchronise: Any = getattr(model, "set_requires_gradient_sync", None)  # FSDP2
            if synchronise is not None:
                synchronise(last)
        with nullcontext() if last or not wrapped else wrapped[0].no_sync():
            losses = self._forward(function, micro, single, self.train_step.accumulate)
            loss = functools.reduce(operator.add, losses.values())
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return float(loss.detach())

    def _update(self, names: list[str], function: Any, parts: list[Any], single: str, total: float) -> None:
        optimizers = [self.optimizers[n] for n in names]
        owned = self._owned(optimizers)
        if self._plain:
            for p in owned.values():
                if p.grad is not None:
                    dist.all_reduce(p.grad.div_(dist.get_world_size()))
        if self.scaler is not None:
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)
        if self.train_step.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(owned.values()), self.train_step.clip)
        for optimizer in optimizers:
            if self.scaler is not None:
                self.scaler.step(optimizer)
            elif needs_closure(optimizer):
                optimizer.step(self._closure(names, function, parts, single, total))
            else:
                optimizer.step()


class _Batches(IterableDataset[Any]):
    """The micro-batches of the steps, as a loader of the program gives them: a rerun of a step has to know them."""

    def __init__(self, runner: RankRunner, first: int) -> None:
        self._runner, self._first = runner, first

    def __iter__(self) -> Iterator[Any]:
        for step in count(self._first):
            try:
                with exits_are_errors():
                    batch = self._runner.parts(step)
            except ReplayError:
                if step == self._first:
                    raise
                return
            yield from batch


def _as_it_is(batch: Any) -> Any:
    return batch


def main(order: dict[str, Any]) -> None:
    """All steps, up to the last one of the order."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group("gloo", timeout=_LIMIT)
    # A recipe may call the set-up of the training, for NCCL on other devices; here the ranks have met.
    dist.init_process_group = lambda *_, **__: None
    rank, size = dist.get_rank(), dist.get_world_size()
    recipe = Recipe(order["recipe"])
    path = None if order["checkpoint"] is None else own_file(Path(order["checkpoint"]), rank)
    saved = None if path is None else read_saved(path, trust=order["trust"])
    context = Context(
        device=torch.device("cpu"),
        step=order["step"],
        checkpoint=path,
        state=None if saved is None else saved.content,
        config=order["config"],
        rank=rank,
        world_size=size,
    )
    with recipe.importable():
        made = recipe.build(context)
        if made.ranks != size:
            raise ReplayError(f"{recipe.path.name}: ranks={made.ranks} where {size} ranks were started")
        runner = RankRunner(made)
        account = Account(rng=Rng.capture(runner.outside.generators)) if saved is None else load_saved(runner, saved)
        firsts = first_steps(made.first_step, saved, order["start"])
        _told(account, len(firsts), rank)
        first = firsts[min(order["numbering"], len(firsts) - 1)]
        runner.begin(first)
        account.rng.restore()
        with torch.enable_grad():
            for step in range(first, order["last"] + 1):
                if not runner.train(step):
                    break
    dist.destroy_process_group()


def _told(account: Account, numberings: int, rank: int) -> None:
    """For the launcher: what was loaded, what was not, and how many steps may be the first one."""
    session = os.environ.get("POSTMORTEM_SESSION")
    if session and rank == 0:
        Path(session, "account.json").write_text(json.dumps([account.fitted, account.unfitted, numberings]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
