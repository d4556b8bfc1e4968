"""The session of a sleeping copy: each rerun is a child in which the user's program continues. Also that of a process
that repeats the tick itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from postmortem.attach.standby.plan import Plan, Reply
from postmortem.replay.model import TrainStep
from postmortem.replay.rerun.samples import Samples
from postmortem.replay.rerun.session import Luck, Rolled, Stage, Traced, in_precision, judged
from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from postmortem.attach.standby.scene import Repeatable
    from postmortem.replay.rerun.session import Outside
    from postmortem.replay.step.errors import Site
    from postmortem.replay.step.precision import Precision
    from postmortem.replay.trace.tracer import Tracer


class AttemptSession:
    """`Session` by attempts that `copy` makes. What enters the tick is known from a first look at it."""

    def __init__(self, copy: Repeatable, autocast: str | None) -> None:
        self.copy, self.step = copy, copy.tick
        self.batch: Any = copy.batch
        micro = max(1, copy.micro_batches)
        self.samples = Samples(TrainStep(None, None, None, accumulate=micro), self.batch)
        self.lead: Sequence[int] = ()
        self.luck = Luck()
        self.whole = True
        self.unfused = False
        self.autocast = autocast
        self.scaled = bool(copy.program.scalers)
        self.device = copy.device
        self.once = False
        self.failure = ""
        self.raised: Site | None = None
        self.rolled: Rolled | None = None
        self.losses: list[tuple[int, str]] = []

    @property
    def loss(self) -> float | None:
        """See `Session`."""
        return float.fromhex(self.losses[-1][1]) if self.losses else None

    def fails(
        self,
        overrides: Overrides = NOTHING,
        *,
        at: Stage = "param",
        alike: bool = False,
        modes: tuple[AbstractContextManager[Any], ...] = (),
        mask: Collection[Outside] = (),
    ) -> bool | None:
        """See `Session`."""
        plan = Plan(overrides, until=at, modes=modes, mask=mask, unfused=self.unfused)
        losses: set[str] = set()
        for runs in itertools.count(1):
            reply = self._reply(plan)
            self.losses = reply.losses
            failed = self._judged(reply, at, alike=alike)
            if failed is False and reply.losses:
                losses.add(repr(reply.losses))
            if self.luck.enough(runs, losses) or failed is not False:
                break
        self.luck.determinism_unknown = self.luck.determinism_unknown and not losses
        return failed

    def _judged(self, reply: Reply, at: Stage, *, alike: bool) -> bool | None:
        if reply.failed:
            self.failure = reply.failed
            return None
        if reply.raised is not None:
            self.failure = reply.raised.said.removeprefix(" raised ")
            return True if reply.raised.site == self.raised else None
        failed, why = judged(reply.stage, at, alike=alike)
        self.failure = why or self.failure
        return failed

    def _reply(self, plan: Plan) -> Reply:
        reply = self.copy.ask(plan)
        for mode, met in zip(plan.modes, reply.met, strict=False):
            if met is not None:
                mode.met = met  # type: ignore[attr-defined]
        return reply

    def trace(
        self,
        tracer: Tracer,
        *,
        modes: tuple[AbstractContextManager[Any], ...] = (),
        mask: Collection[Outside] = (),
        change: Callable[[Any], Any] | None = None,
        after: Callable[[Any], Any] | None = None,
    ) -> Traced:
        """See `Session`."""
        plan = Plan(modes=modes, mask=mask, tracer=tracer, change=change, after=after, unfused=self.unfused)
        reply = self._reply(plan)
        if reply.failed or reply.traced is None:
            self.failure = reply.failed
            return Traced(unseen=reply.failed)
        if reply.raised is not None:
            self.raised = reply.raised.site
        return reply.traced

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """See `Session`."""
        return in_precision(self, dtype)

    def finite_again(self) -> bool:
        """See `Session`."""
        reply = self._reply(Plan())
        return reply.stage is None and reply.raised is None and not reply.failed

    def half(self) -> bool:
        """See `Session`."""
        return self.copy.program.half()

    def has_state(self) -> bool:
        """See `Session`."""
        return bool(self.copy.program.optimizer_tensors())

    def draws_nothing(self, *, at: Stage) -> bool:
        """See `Session`."""
        return not self._reply(Plan(until=at)).drew

    def bad_before(self) -> set[Outside]:
        """See `Session`."""
        return {("batch", ""), *self.copy.program.bad()}
