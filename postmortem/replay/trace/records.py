"""What the tracer records: operators with non-finite output, and where non-finite values began."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.replay.trace.places import Where


@dataclass(slots=True)
class TensorView:
    """A tensor that an operator read or wrote, as it was then.

    source: index of the operator that wrote it, or a negative storage key if it came from outside the step. bits: kinds
    of non-finite values. rows: per dimension, the indices with non-finite values (only for hits that were described).
    """

    source: int
    bits: int
    shape: tuple[int, ...]
    dtype: str
    rows: dict[int, list[int]] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Hit:
    """An operator whose output has non-finite values.

    constants: non-finite Python numbers among the arguments. rows: per dimension of the output, the indices of newly
    non-finite values; `shape` is that output's. forward_name: in the backward pass, the forward operator whose
    derivative this is part of. passes: forward passes (of micro-batches or sub-steps) finished before it. first: the
    first operator that the same expression ran; only where non-finite values begin.
    """

    index: int
    name: str
    where: Where
    backward: bool
    stage: str
    inputs: list[TensorView]
    outputs: list[TensorView]
    constants: list[float]
    rows: dict[int, list[int]] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    forward_name: str | None = None
    half: bool = False
    passes: int = 0
    first: str = ""

    @property
    def out_bits(self) -> int:
        """Kinds of non-finite values in any of its outputs."""
        bits = 0
        for t in self.outputs:
            bits |= t.bits
        return bits


@dataclass(frozen=True, slots=True)
class Origin:
    """Where non-finite values began: at the operator `hit`, or in a tensor from outside the step that `hit` read.

    outside: the tensor's source. constant: an infinity that the program wrote down, as masks do. from_inf: NaN computed
    from infinities.
    """

    hit: Hit
    outside: int | None = None
    bits: int = 0
    constant: bool = False
    from_inf: bool = False


@dataclass(slots=True)
class TraceLog:
    """What the tracer saw of a step, by index of the operator.

    hits: operators with non-finite output. rewrites: in-place operator -> the operator that wrote the tensor before.
    items: (operator, value, source of the tensor) of each non-finite number that `item()` returned. disowned: storage
    keys of tensors that count as coming from outside.
    """

    hits: dict[int, Hit] = field(default_factory=dict)
    rewrites: dict[int, int] = field(default_factory=dict)
    items: list[tuple[int, float, int]] = field(default_factory=list)
    disowned: set[int] = field(default_factory=set)

    def name(self, modules: Mapping[int, str]) -> None:
        """Writes the names of the modules, by their id, into the places of the hits."""
        for hit in self.hits.values():
            if name := modules.get(hit.where.owner):
                hit.where = replace(hit.where, module=name)
