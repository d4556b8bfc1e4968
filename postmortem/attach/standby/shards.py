"""The parameter shards of the other ranks (FSDP2), for a copy of one rank that runs without them.

The program keeps what each group of parameters was gathered to in the tick under way. A copy of the process gathers its
own part anew, and takes those of the others from there. Parameters do not change within a tick, so that one record per
group serves all its backward passes.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FUNCTION = "foreach_all_gather_copy_out"
_OURS = "_postmortem_gathered"
_SUMS = ("reduce_scatter_tensor", "reduce_scatter_single")  # the second one is the name since torch 2.13


class Gathered:
    """rows: group of parameters -> what all ranks gave, one after another. The group is known by the id of its first
    parameter, which is the same in a forked copy. alone: this process is such a copy."""

    def __init__(self) -> None:
        self.rows: dict[int, torch.Tensor] = {}
        self.alone = self._keeps = False

    def begin(self) -> None:
        """A copy is forked: what is gathered from now on is unknown to it."""
        self.rows, self._keeps = {}, True
        module = sys.modules.get(_MODULE)
        function = getattr(module, _FUNCTION, None)
        if function is not None and not hasattr(function, _OURS):
            setattr(module, _FUNCTION, self._wrapped(function))

    def end(self) -> None:
        """There is no copy any more."""
        self.rows, self._keeps = {}, False

    def take(self, rows: dict[int, torch.Tensor]) -> None:
        """In a copy: the other ranks gave this."""
        self.rows, self.alone = rows, True
        for name in _SUMS if rows else ():
            if hasattr(torch.distributed, name):
                setattr(torch.distributed, name, _own_part)

    def _wrapped(self, function: Any) -> Any:
        @functools.wraps(function)
        def copy_out(result: Any, params: Any, group: Any) -> Any:
            with _disable_current_modes(), torch.no_grad():
                self._seen(result, id(params[0]), group)
            return function(result, params, group)

        setattr(copy_out, _OURS, True)
        return copy_out

    def _seen(self, result: Any, key: int, group: Any) -> None:
        if isinstance(result.all_gather_work, torch.distributed.Work):
            result.all_gather_work.wait()
        output = result.all_gather_output
        if not self.alone:
            if self._keeps and key not in self.rows:
                self.rows[key] = output.detach().clone()
            return
        known = self.rows.get(key)
        if known is not None and known.shape == output.shape:
            size, rank = group.size(), group.rank()
            own = output.view(size, -1)[rank].clone()
            output.copy_(known)
            output.view(size, -1)[rank].copy_(own)


def _own_part(output: torch.Tensor, input: torch.Tensor, op: Any = None, group: Any = None, **options: Any) -> None:  # noqa: A002
    """In a copy: what this rank itself adds to its part of the sum."""
    group = group or torch.distributed.group.WORLD
    with torch.no_grad():  # a tracer sees where the gradient came from
        output.copy_(input.reshape(group.size(), -1)[group.rank()].view_as(output))
        if op == torch.distributed.ReduceOp.AVG:
            output.div_(group.size())


gathered = Gathered()
