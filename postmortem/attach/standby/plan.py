"""What a forked child is asked to do with the step, and what it reports: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

    import torch

    from postmortem.attach.standby.program import Program
    from postmortem.replay.rerun.session import Outside, Stage, Traced
    from postmortem.replay.step.errors import Raised
    from postmortem.replay.trace.tracer import Tracer

Key = tuple[int, int]
"""Number of a DataLoader's iterator in the order of their first batch since the program began, number of the batch."""


@dataclass(slots=True)
class Plan:
    """One attempt; it crosses a fork only, so that it may hold any object.

    until: where the tick at fault ends early. modes, mask, change, after: as in `Session`. survey: look which tensors
    enter the tick. unfused: as in `Session`. once: it is the failing step itself, which cannot be repeated.
    begin: called when the tick begins, for a capture; returns why it failed. first: ends at the first tick from the
    copy on that leaves parameters or buffers non-finite, also where that is an earlier one.
    """

    overrides: Overrides = NOTHING
    until: Stage = "param"
    modes: tuple[AbstractContextManager[Any], ...] = ()
    mask: Collection[Outside] = ()
    tracer: Tracer | None = None
    change: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    survey: bool = False
    unfused: bool = False
    once: bool = False
    begin: Callable[[Program], str] | None = None
    first: bool = False

    @property
    def plain(self) -> bool:
        """The program as it is."""
        return self.overrides == NOTHING and not self.modes and self.tracer is None and not self.survey


@dataclass(slots=True)
class Reply:
    """What an attempt saw.

    stage: where the tick at fault first had non-finite values. losses: (tick, loss) of every backward pass, bit for
    bit; `last` are those of the tick at fault. norm: the largest gradient norm after a backward
    pass of it, where that is asked for. failed: why it could not be run. met: of the modes. drew: random numbers
    were drawn in the tick. passes: backward passes that had begun in the tick. For a capture: held, the batches drawn
    before the tick; drawn, those in it, each with the state of the generators after it; settings, by optimizer (named
    by the parameters it updates), those of its update. earlier: the tick before the one at fault that already leaves
    parameters or buffers non-finite, and which of both ("parameter", "buffer").
    """

    stage: Stage | None = None
    losses: list[tuple[int, str]] = field(default_factory=list)
    raised: Raised | None = None
    failed: str = ""
    traced: Traced | None = None
    met: list[Any] = field(default_factory=list)
    drew: bool = True
    norm: float = math.nan
    passes: int = 0
    entered: Entered | None = None
    autocast: str | None = None
    held: list[Key] = field(default_factory=list)
    drawn: list[tuple[Key, Any]] = field(default_factory=list)
    settings: list[tuple[list[str], list[dict[str, Any]]]] = field(default_factory=list)
    earlier: tuple[int, str] | None = None


@dataclass(slots=True)
class Entry:
    """A tensor of data that an operator of the tick made, outside of any module, and that the model or the loss reads.

    index, name: of the operator, and `at` the place of the tensor among its outputs. place: where another run of the
    tick finds it. passes: backward passes before it.
    offset, stride: in the memory that the operator wrote, of which an in-place one may have been given a part only.
    """

    index: int
    name: str
    at: int
    passes: int
    values: torch.Tensor
    offset: int = 0
    stride: tuple[int, ...] = ()
    place: tuple[str, int, int] = ("", 0, 0)


@dataclass(slots=True)
class Entered:
    """What enters a tick: batches of loaders, each with the number of backward passes before it is read, or else
    `entries`."""

    batches: list[tuple[int, Key]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


def total(loss: torch.Tensor) -> float:
    """The value of a loss as one number."""
    whole = loss.detach()
    return float((whole if whole.numel() == 1 else whole.sum()).abs() if whole.is_complex() else whole.sum())


def bits(loss: float) -> str:
    """A loss as text that differs where its bits do, except those of NaN."""
    return float(loss).hex()
