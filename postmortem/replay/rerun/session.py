"""What the search for a culprit asks of a step that can be run again: the protocol, and the plain data that it answers.

`Reruns` runs a TrainStep again in this process. Other sessions run the user's own program again, in another process:
so what is handed over may be any object, but what comes back is plain data that can be pickled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from postmortem.replay.step.overrides import NOTHING, Overrides
from postmortem.replay.trace.origins import origins
from postmortem.replay.trace.places import NOWHERE, Where
from postmortem.replay.trace.records import TraceLog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from postmortem.replay.rerun.determinism import Again
    from postmortem.replay.rerun.samples import Samples
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.errors import Raised, Site
    from postmortem.replay.step.precision import Precision
    from postmortem.replay.step.runner import StepRunner
    from postmortem.replay.step.state import State
    from postmortem.replay.trace.records import Origin
    from postmortem.replay.trace.tracer import Tracer

Stage = Literal["loss", "grad", "param"]
STAGES: tuple[Stage, ...] = ("loss", "grad", "param")
Outside = tuple[str, str]
"""("parameter" | "optimizer" | "batch", name) of a tensor from outside the step."""
TRIES = 10
"""Consecutive finite reruns of a nondeterministic step that are unlikely to be chance."""


@dataclass(slots=True)
class Luck:
    """Decides how many consecutive finite reruns count as a cure, as a nondeterministic step may be finite by chance.

    times: consecutive finite reruns needed. determinism_unknown: the step's own losses cannot show whether it is
    deterministic, so the first finite rerun is made twice.
    """

    times: int = 1
    determinism_unknown: bool = False

    def enough(self, runs: int, losses: Collection[str]) -> bool:
        """True if `runs` finite reruns, which gave these different losses, are a cure."""
        if len(losses) > 1 and self.times == 1:
            self.times = TRIES
        return runs >= max(self.times, 2 if self.determinism_unknown and losses else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is known of the failing step before it is run again.

    step: None if every step is finite; `last` is then the last step, else the same. first: the first step that was
    run. overflow: a scaler skipped it, as its gradients overflow at this `scale`. lr: its learning rate. loss: that of
    the last step. course: finite losses of the last steps before. raised: what the step raised. again: the result of
    running it again, None if that was not done.
    """

    step: int | None
    last: int
    first: int
    overflow: bool = False
    scale: float = 1.0
    lr: float = 0.0
    loss: float = math.nan
    course: Sequence[float] = ()
    raised: Raised | None = None
    again: Again | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer in words, with its settings, and where the program calls its step."""

    optimizer: str
    at: Where


@dataclass(slots=True)
class Traced:
    """A traced rerun, as plain data: where it first failed, which operators wrote the non-finite tensors, and what is
    known by storage.

    log, suspects, origin: of the tracer. stage: the first of loss, grad and param with non-finite values, None if all
    are finite; `names` and `sources` are those of the non-finite tensors (a source is an operator's index, or a
    negative storage key for a tensor from outside). backward_ended: number of operators up to the end of the last
    backward pass. known: storage key -> ("parameter" | "optimizer" | "batch", name). raised: what the step raised, in
    the pass that `stage` names; `sources` then holds everything non-finite. buffers: names of tensors that are no
    parameters. strides: parameters whose gradient has other strides, as (name, gradient's strides, parameter's
    strides, source of the gradient). starts: (step, number of operators before it) of each step that was run. seen:
    what `after` returned. unseen: why nothing could be traced. update: the one that made parameters non-finite.
    """

    log: TraceLog = field(default_factory=TraceLog)
    suspects: list[int] = field(default_factory=list)
    origin: tuple[str | None, Where] = (None, NOWHERE)
    stage: Stage | None = None
    names: list[str] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    loss: float | None = None
    backward_ended: int = 0
    known: dict[int, Outside] = field(default_factory=dict)
    raised: Raised | None = None
    buffers: set[str] = field(default_factory=set)
    strides: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    seen: Any = None
    unseen: str = ""
    update: Update | None = None

    def origins(self) -> list[Origin]:
        """Where the non-finite values of the step began."""
        return origins(self.log, self.sources)

    def step_of(self, index: int) -> int:
        """The step in which an operator ran."""
        return next(step for step, start in reversed(self.starts) if index >= start)

    def close(self, tracer: Tracer, modules: Mapping[int, str]) -> None:
        """Takes what the tracer recorded, once the run has ended. modules: id of a module -> its qualified name."""
        tracer.log.name(modules)
        self.log, self.suspects, self.origin = tracer.log, tracer.suspects, tracer.origin
        for origin in self.origins():
            if not origin.hit.backward:
                origin.hit.first = tracer.first_at(origin.hit.index)


@dataclass(frozen=True, slots=True)
class Rolled:
    """The steps before the one at fault, where a session can run these again, too.

    longer: a session whose reruns begin at a state with the steps that follow it, up to the one at fault.
    """

    runner: StepRunner
    roll: Roll
    longer: Callable[[State, Sequence[int]], Session]


class Session(Protocol):
    """Reruns of the step `step` from the state before it, unchanged, changed or traced, each from the same state.

    batch: of the step, never changed in place. samples: its samples. lead: the steps before it that belong to every
    rerun. whole: there are no sub-steps, whose forward passes need the optimizer steps before them. unfused: while
    operators are watched, optimizers update in single operators, as a fused kernel hides which one fails. autocast,
    scaled: the step uses autocast to that type, a loss scaler. failure: why the last rerun could not be done. raised:
    class and place of what the step raises when it fails, if it does (known once the step was traced). rolled: see
    `Rolled`. once: the step was traced when it failed and cannot be run again: nothing is confirmed.
    """

    step: int
    batch: Any
    samples: Samples
    lead: Sequence[int]
    luck: Luck
    whole: bool
    unfused: bool
    autocast: str | None
    scaled: bool
    device: str
    failure: str
    raised: Site | None
    rolled: Rolled | None
    once: bool

    @property
    def loss(self) -> float | None:
        """The loss of the last rerun without a tracer, in the program's steps that of their last backward pass."""
        ...

    def fails(
        self,
        overrides: Overrides = NOTHING,
        *,
        at: Stage = "param",
        alike: bool = False,
        modes: tuple[AbstractContextManager[Any], ...] = (),
        mask: Collection[Outside] = (),
    ) -> bool | None:
        """True if the step still fails at stage `at` or earlier, False if not.

        None if it could not be run (see `failure`) or, with alike=True, if it failed earlier, for another reason. A
        finite rerun is repeated as often as `luck` requires. modes: contexts to run it in. mask: tensors from outside
        whose non-finite values are set to zero.
        """
        ...

    def trace(
        self,
        tracer: Tracer,
        *,
        modes: tuple[AbstractContextManager[Any], ...] = (),
        mask: Collection[Outside] = (),
        change: Callable[[Any], Any] | None = None,
        after: Callable[[Any], Any] | None = None,
    ) -> Traced:
        """A rerun under the tracer up to the first non-finite loss, gradient or parameter.

        modes: contexts around it. mask: as in `fails`. change: applied to the batch. after: called with that batch at
        the end; what it returns is plain data.
        """
        ...

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """(whether the step fails if all of it is run in `dtype`, None if it could not be run; a note).

        If explicit casts in its code prevent that, it is run again with these casts to `dtype`.
        """
        ...

    def finite_again(self) -> bool:
        """True if one unchanged rerun is finite."""
        ...

    def half(self) -> bool:
        """True if a parameter is in half precision."""
        ...

    def has_state(self) -> bool:
        """True if an optimizer has a state before the step."""
        ...

    def draws_nothing(self, *, at: Stage) -> bool:
        """True if the step, run up to `at`, draws no random numbers."""
        ...

    def bad_before(self) -> set[Outside]:
        """What was non-finite before the first step that can be run again; the batch is always among it."""
        ...


WITHOUT_CASTS = ", without the casts in the code to a narrower dtype"


def in_precision(session: Session, dtype: Precision) -> tuple[bool | None, str]:
    """`Session.in_precision`, by reruns."""
    fails = session.fails(Overrides(dtype=dtype))
    if fails is not None:
        return fails, ""
    why = session.failure
    fails = session.fails(Overrides(dtype=dtype, casts_follow=True))
    session.failure = why
    return (
        fails,
        "; could not be run: " + why if fails is None else WITHOUT_CASTS,
    )


def judged(found: Stage | None, at: Stage, *, alike: bool) -> tuple[bool | None, str]:
    """(whether a rerun that first has non-finite values at `found` fails as `fails` asks, why it does not count)."""
    if alike and found is not None and STAGES.index(found) < STAGES.index(at):
        return None, {"loss": "the loss is", "grad": "a gradient is"}.get(found, "a parameter is") + " non-finite"
    return found is not None and STAGES.index(found) <= STAGES.index(at), ""


def mask_values(t: Any) -> None:
    """Sets the non-finite values of a tensor to zero."""
    t.nan_to_num_(0.0, 0.0, 0.0)
