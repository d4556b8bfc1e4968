"""What a fix is: a change that is tried on the failing step, and the advice to give if it cures the step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from typing import TYPE_CHECKING

from postmortem.core.culprit import Culprit, Fix, Phase
from postmortem.replay.rerun.session import TRIES
from postmortem.replay.roll.level import far_from
from postmortem.replay.step.function_mode import StepMode
from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.view import View
    from postmortem.replay.rerun.samples import Samples
    from postmortem.replay.rerun.session import Session, Stage
    from postmortem.replay.step.precision import Precision
    from postmortem.replay.trace.places import Where

Change = Overrides | StepMode
"""A change of the step: other settings, or a mode that intercepts the calls of torch functions."""
NUMERIC: Sequence[Phase] = ("data", "parameters", "forward", "backward", "optimizer", "scaler")
"""The phases of culprits that make a loss, a gradient or a parameter non-finite."""


class Scope(IntEnum):
    """What an advice changes. Advice is given in this order: the narrowest change first."""

    LINE = auto()
    STATE = auto()
    """The optimizer's state; not given where a change of the line cures the step."""
    DATA = auto()
    PRECISION = auto()
    RATE = auto()
    TRAINING = auto()


@dataclass(frozen=True, slots=True)
class Advice:
    """One sentence: what to do."""

    scope: Scope
    text: str


@dataclass(slots=True)
class Case:
    """A failing step while fixes are tried on it.

    found: the culprit, to which each fix adds its outcome.
    reruns: reruns of the step from the state before it.
    samples: the samples of its batch.
    stage: what fails first, the loss, a gradient or a parameter; None where the step is finite.
    how: notes on how the culprit was established; a fix may append to them.
    op, where: the operator at fault, by torch's own name, and its place in the user's code.
    course: finite losses of the steps before, in their order; empty where none is known.
    """

    found: Culprit
    reruns: Session
    samples: Samples
    stage: Stage | None
    how: list[str]
    op: str | None = None
    where: Where | None = None
    course: Sequence[float] = ()
    _precisions: dict[Precision, tuple[bool | None, str]] = field(default_factory=dict)

    def fails(self, change: Change) -> tuple[bool | None, str]:
        """Whether the step still fails with `change` (None: it could not be run), and a note on the rerun."""
        if isinstance(change, StepMode):
            fails = self.reruns.fails(modes=(change,))
        elif change.dtype is not None and not change.casts_follow:
            return self.in_precision(change.dtype)
        else:
            fails = self.reruns.fails(change)
        return fails, "" if fails is not None else f"; could not be run: {self.reruns.failure}"

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """Whether the step still fails when all of it is computed in `dtype`, and a remark; rerun only once."""
        if dtype not in self._precisions:
            self._precisions[dtype] = self.reruns.in_precision(dtype)
        return self._precisions[dtype]

    def with_fix(
        self, name: str, *, cured: bool, how: str, loss: float | None = None, ran: bool = True, note: str = ""
    ) -> Culprit:
        """The culprit with one more fix that was tried."""
        away = far_from(self.course, loss) if cured and loss is not None else None
        before = self.course[-1] if cured and loss is not None and self.course else None
        added = Fix(name=name, cured=cured, how=how, loss=loss, far_from=away, before=before, ran=ran, note=note)
        return replace(self.found, fixes=(*self.found.fixes, added))


class BaseFix:
    """A fix. The class docstring is its page in ``postmortem explain``.

    Most fixes set `what` and `overrides` only; others compute the change from the case. A fix has no state of its own.
    """

    name: str
    order: int
    """Fixes are tried, and reported, in this order."""
    what: str = ""
    """A description of the change, as the report shows it."""
    overrides: Overrides = NOTHING
    """The change, where it is the same for every step."""
    phases: Sequence[Phase] = NUMERIC
    """The phases of culprits that the fix is tried on."""
    limits_update: bool = False
    """The fix makes the update of the parameters smaller and changes nothing before it. Such fixes are tried on a
    divergence, too, on all its steps."""

    def applies(self, case: Case) -> bool:
        """Whether the fix can be tried on this step."""
        return True

    def change(self, case: Case) -> Change | None:
        """The change of the step; None where it would change nothing in this batch."""
        return self.overrides

    def describe(self, case: Case) -> str:
        """A description of the change; overridden if it depends on the case."""
        return self.what

    def attempt(self, case: Case) -> Culprit:
        """Tries the fix: `case.found` with the outcome, by default one `Fix` more."""
        change, what = self.change(case), self.describe(case)
        if change is None:
            return case.with_fix(self.name, cured=False, how=f"{what}: changes nothing in this batch")
        fails, remark = case.fails(change)
        cured, reruns = fails is False, case.reruns
        if cured and self.limits_update and reruns.whole and case.stage != "param":
            reruns.luck.times = max(reruns.luck.times, TRIES)  # the fix acts after the failure, so the cure was chance
        known = cured and (isinstance(change, StepMode) or change.dtype is None)  # else it may be of an earlier rerun
        loss = reruns.loss if known else None
        return case.with_fix(self.name, cured=cured, how=what + remark, loss=loss, ran=fails is not None)

    def conclude(self, case: Case) -> Culprit:
        """`case.found`, revised once all fixes were tried."""
        return case.found

    def cure(self, culprit: Culprit) -> Fix | None:
        """The fix as reported with `culprit`, where it cured the step."""
        return next((f for f in culprit.fixes if f.name == self.name and f.cured), None)

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice | None:
        """What to do if the fix cures the step. `view`: the run's log, which may hold the values to set."""
        return None
