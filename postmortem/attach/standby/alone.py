"""Runs one rank without the others: a forked copy does not have the threads that communicate with them.

Every collective of the copy is answered on the spot with what this rank itself contributed. For the question whether
the step of this rank makes the non-finite values this is right: what its forward and backward passes compute does not
depend on the others until the gradients are summed. What came in with the sum does not come back here, and is nobody's
fault on this rank.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def among_others() -> bool:
    """Whether this process talks to others."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def can_be_alone() -> bool:
    """Whether the processes talk by gloo only, and torch has what takes its place."""
    return all(_backend(group) == "gloo" for group in _groups()) and hasattr(_bindings(), "FakeProcessGroup")


def cut_off() -> None:
    """From now on collectives of this process, which was forked from a rank, involve nobody else."""
    if not among_others():
        return
    fake = _bindings().FakeProcessGroup
    make = getattr(fake, "_create_internal", fake)
    for group in _groups():
        kind = torch.distributed.ProcessGroup.BackendType.CUSTOM
        group._register_backend(torch.device("cpu"), kind, make(group.rank(), group.size()))
    for found in [o for o in gc.get_objects() if issubclass(type(o), torch.nn.parallel.DistributedDataParallel)]:
        if not found._comm_hooks:
            torch.distributed._register_comm_hook(  # type: ignore[attr-defined]
                found.reducer, found.process_group.size(), _own_share
            )


def _own_share(size: int, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """What this rank adds to the mean of a bucket of gradients. DistributedDataParallel takes that from what the
    collective gives, which is nothing here."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer().div_(size))
    return done


def _bindings() -> Any:
    return torch._C._distributed_c10d


def _groups() -> Iterator[Any]:
    yield from torch.distributed.distributed_c10d._world.pg_map


def _backend(group: Any) -> str:
    return str(torch.distributed.get_backend(group))
