"""What the tracing engine writes down: operators whose output was not finite, and where that began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postmortem.replay.trace.places import Where


@dataclass(slots=True)
class TensorView:
    """What an operator read or wrote, as it was then: kinds of non-finite values, statistics, first bad index."""

    source: int
    bits: int
    shape: tuple[int, ...]
    dtype: str
    rows: dict[int, list[int]] = field(default_factory=dict)
    """Per dimension, the indices at which it is not finite (only where a hit was described)."""
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Hit:
    """An operator whose output was not finite."""

    index: int
    name: str
    where: Where
    backward: bool
    stage: str
    inputs: list[TensorView]
    outputs: list[TensorView]
    constants: list[float]
    """Non-finite Python numbers among the arguments."""
    rows: dict[int, list[int]] = field(default_factory=dict)
    """Per dimension of the output, the indices at which something is newly not finite."""
    shape: tuple[int, ...] = ()
    forward_name: str | None = None
    """In the backward pass: the forward operator whose derivative this is part of."""
    own_code: bool = False
    """In the backward pass: it runs in Python code of the user (a hook, a custom Function's backward)."""
    half: bool = False
    passes: int = 0
    """How many forward passes, of micro-batches or sub-steps, were done before it."""

    @property
    def out_bits(self) -> int:
        bits = 0
        for t in self.outputs:
            bits |= t.bits
        return bits


@dataclass(frozen=True, slots=True)
class Birth:
    """Where non-finite values began: an operator, or (`hit` is the reader) a tensor that came from outside the step."""

    hit: Hit
    outside: int | None = None
    bits: int = 0
    constant: bool = False
    """An infinity that the program wrote down, as masks do."""
    from_inf: bool = False
    """NaN that was made out of infinities."""
