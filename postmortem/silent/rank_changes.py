"""What trials change between the ranks of a program: each function here is a `Start` of a `Trial`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.silent.trials import at_steps

if TYPE_CHECKING:
    from collections.abc import Callable


def begun_alike(used: Callable[[], None]) -> None:
    """Before an optimizer's first step, its parameters get the values of rank 0."""
    seen: set[int] = set()

    def send(optimizer: Any) -> bool:
        if id(optimizer) in seen or not _several():
            return False
        seen.add(id(optimizer))
        import torch.distributed as ranks

        for p in _parameters(optimizer):
            ranks.broadcast(p.data, 0)
        return True

    at_steps(send)(used)


def averaged_over_ranks(used: Callable[[], None]) -> None:
    """Parameters begin alike, and before each step the gradients are averaged over all ranks."""

    def average(optimizer: Any) -> bool:
        if not _several():
            return False
        import torch.distributed as ranks

        for p in _parameters(optimizer):
            if p.grad is not None:
                ranks.all_reduce(p.grad)
                p.grad /= ranks.get_world_size()
        return True

    begun_alike(used)
    at_steps(average)(used)


def _several() -> bool:
    import torch.distributed as ranks

    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]
