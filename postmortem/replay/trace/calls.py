"""One call of an operator whose output looks non-finite, and the record that is made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.model import MASKED
from postmortem.replay.trace.operators import ABSORBERS, OpInfo
from postmortem.replay.trace.records import Hit, TensorView
from postmortem.replay.trace.tensors import INF, NAN, along, exact_bits, has_rows, local, rows_of, shape_of, statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.replay.trace.places import Where

_SOFTMAX = ("_softmax", "_log_softmax")


@dataclass(slots=True)
class Call:
    """A call that has been made. Made only for the few operators that need a closer look.

    tensors: those among the arguments, written by `sources`. earlier: id of a tensor -> the bits that it held before
    the call overwrote it. outputs: the tensors that it wrote.
    """

    index: int
    info: OpInfo
    args: Sequence[Any]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    sources: list[int]
    earlier: dict[int, int]
    outputs: list[torch.Tensor]

    def hit(self, where: Where, *, backward: bool, stage: str, passes: int) -> Hit | None:
        """The record of this call; None if its output is finite after all."""
        outputs = [TensorView(self.index, exact_bits(o), shape_of(o), str(o.dtype)) for o in self.outputs]
        if not any(o.bits for o in outputs):
            return None
        inputs = [TensorView(s, self._read(t), shape_of(t), str(t.dtype)) for t, s in self._inputs()]
        arguments = [*self.args, *self.kwargs.values()]
        return Hit(
            index=self.index,
            name=self.info.name,
            where=where,
            backward=backward,
            stage=stage,
            inputs=inputs,
            outputs=outputs,
            constants=[v for v in arguments if isinstance(v, float) and not math.isfinite(v)],
            half=any(o.dtype in (torch.float16, torch.bfloat16) for o in self.outputs),
            passes=passes,
        )

    def _inputs(self) -> list[tuple[torch.Tensor, int]]:
        return list(zip(self.tensors, self.sources, strict=True))

    def _read(self, t: torch.Tensor) -> int:
        """Kinds of non-finite values that the call read from `t`."""
        return self.earlier[id(t)] if id(t) in self.earlier else exact_bits(t)

    def describe(self, hit: Hit, samples: int) -> None:
        """Adds statistics and rows to the hit if non-finite values begin here.

        samples: batch size; with more than one, the rows in dimensions that it divides are added to other hits, too.
        """
        seen = 0
        for t in hit.inputs:
            seen |= t.bits
        out = hit.out_bits
        if not seen & NAN and (not seen or out & NAN or hit.name in ABSORBERS):
            self._describe(hit, NAN if out & NAN else INF)
        if samples > 1 and not hit.rows:
            o = local(self._first_bad(hit))
            dims = [d for d, size in enumerate(o.shape) if size and size % samples == 0] if has_rows(o) else []
            if dims:
                bad = ~torch.isfinite(o)
                hit.shape, hit.rows = tuple(o.shape), {d: along(bad, d) for d in dims}

    def _describe(self, hit: Hit, new: int) -> None:
        for view, t in zip(hit.inputs, self.tensors, strict=True):
            if id(t) not in self.earlier:
                view.stats = statistics(t)
                if view.bits and has_rows(t):
                    view.rows = rows_of(~torch.isfinite(local(t)))
        for view, o in zip(hit.outputs, self.outputs, strict=True):
            view.stats = statistics(o)
        if self.info.name in _SOFTMAX and hit.inputs and hit.inputs[0].stats and isinstance(self.args[1], int):
            masked = (local(self.tensors[0]) == -math.inf).all(self.args[1])
            if masked.any():
                hit.inputs[0].stats |= {MASKED: int(masked.sum()), "rows": masked.numel()}
        o = local(self._first_bad(hit))
        if has_rows(o):
            hit.shape = tuple(o.shape)
            hit.rows = rows_of(torch.isnan(o) if new == NAN else ~torch.isfinite(o))

    def _first_bad(self, hit: Hit) -> torch.Tensor:
        return next(o for view, o in zip(hit.outputs, self.outputs, strict=True) if view.bits)
