from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.numerics import FORWARD, OVERFLOW
from postmortem.diagnoses.shared.last_good import stable_before, watched
from postmortem.diagnoses.shared.schedule import clip, rate_at, value_at
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, named, role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View
    from postmortem.diagnoses.shared.schedule import Rate

_LEAP, _LEAP_OF_GRADIENT = 3.0, 10.0
"""Ratios to the highest of the ten rows before from which on loss and gradient norm leap."""
_ENOUGH = 10
"""Rows before the fault that show what is stable."""


@diagnosis
class BadBatch:
    """One batch may have made a stable training fail: loss, gradient norm and learning rate showed no change before it.

    A single jump while the learning rate does not rise and the gradient norm is flat suggests a faulty sample rather
    than a problem of the optimisation. It is a possible cause. For a NaN, an operation at the limit of its numeric
    range looks the same in a log: the diagnosis is then called bad-batch-or-numerics.

    If loss and gradient norm leap in one and the same step of a log of every step, and the training does not recover,
    the batch is a likely cause: the loss of a step is computed before its update.
    """

    name = "bad-batch"
    also = ("bad-batch-or-numerics",)
    priority = 40

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        spikes = [f for f in named(findings, "loss-spike", "gradient-spike") if f.severity == "warning"]
        found = faults(view, findings) or spikes
        if not found:
            return None
        root = found[0]
        rate, train = rate_at(view, root.step), view.main("loss")
        jumped = rate is not None and rate.jump > 1.8
        back = bool(root.evidence.get("recovered")) or root.severity == "warning"
        alone = root.name in ("loss-spike", "gradient-spike") and back
        if not jumped and not alone and _leaps_with_its_gradient(view, root):
            return _never_recovered(view, findings, root) if rate is None or not rate.rising else None
        if jumped or not (alone or root.name in NONFINITE) or not stable_before(view, root.step):
            return None
        if role(view, root) not in ("loss", "grad_norm", "layer_grad_norm", None) or train is None:
            return None
        beside = [f for f in named(found, "nan-onset", "inf-onset") if f.step == root.step and role(view, f) == "loss"]
        if root.name in NONFINITE and (not beside or view.main("grad_norm") is None):
            return None  # the backward pass alone, or no gradient norm to be flat: numerics
        others = consequences(findings, root)
        if alone:
            others = [f for f in others if f.step == root.step and f.name.endswith("spike")]
        batch = _batch(view, root)
        rest = f"; {rate.tag} did not rise" if rate is not None and not rate.rising else ""
        row = "step" if batch.startswith("the") else "row"
        known = min(int(np.searchsorted(s.step, root.step or 0)) for s in watched(view))
        until = f"up to the previous {row}" if known >= _ENOUGH else f"in the {known} rows before"
        samples = f"check the samples of {batch.partition(' of ')[2]}"
        return (
            Story(view, root, others)
            .because(
                f"{' and '.join(s.tag for s in watched(view))} stayed stable {until}{rest}",
                *(f.message for f in others[:2]),
            )
            .against(*_doubts(known, rate))
            .against("a step of the optimizer that was too large looks the same in a log" if back else None)
            .disproved_by("the step also fails in a replay with the previous batch (then an operation is at fault)")
            .advise(
                f"{samples}: non-finite or extreme values, empty or very long samples, labels out of range",
                clip(view, root.step)
                if back
                else f"if the samples are in order: {OVERFLOW if root.name == 'inf-onset' else FORWARD}",
            )
            .replay()
            .diagnosis(
                "bad-batch" if back else "bad-batch-or-numerics",
                f"The training was stable {until}: {root.message}. "
                + (
                    f"The samples of {batch} may be at fault."
                    if back
                    else f"Either {batch} holds faulty samples, or an operation reached the limit of its numeric range."
                ),
            )
        )


def _doubts(known: int, rate: Rate | None) -> Iterator[str]:
    """What speaks against a training that was stable: few rows before, a learning rate that was rising."""
    if known < _ENOUGH:
        yield f"only {known} rows are logged before: they hardly show what is usual"
    if rate is not None and rate.rising:
        rose = f"from {number(rate.before, 3)} to {number(rate.at, 3)}"
        yield f"{rate.tag} was rising, {rose}: an update that was too large may have come before"


def _leaps_with_its_gradient(view: View, root: Finding) -> bool:
    """Whether loss and gradient norm leave a stable course in one and the same step, of a log of every step.

    The loss of a step is computed before its update. An ordinary update before it leaves the batch as the cause.
    """
    loss, norm = view.main("loss"), view.main("grad_norm")
    if root.name not in ("divergence", "loss-spike") or loss is None or norm is None or root.step is None:
        return False
    for series, ratio in ((loss.finite, _LEAP), (norm.finite, _LEAP_OF_GRADIENT)):
        at = int(np.searchsorted(series.step, root.step))
        if not 5 <= at < len(series) or series.step[at] != root.step or series.step[at - 1] != root.step - 1:
            return False
        highest = float(series.value[max(0, at - 10) : at].max())
        if highest <= 0 or series.value[at] < ratio * highest:
            return False
    return stable_before(view, root.step)


def _never_recovered(view: View, findings: tuple[Finding, ...], root: Finding) -> Diagnosis:
    """One batch whose update the training did not recover from."""
    rate, norm = rate_at(view, root.step), view.main("grad_norm")
    others = consequences(findings, root)
    jump = next((f for f in (root, *others) if f.name == "loss-spike" and f.step == root.step), root)
    level = value_at(norm, (root.step or 0) - 1)
    update = f"the update before it was of the usual size ({norm.tag if norm else ''} {number(level or 0.0)}"
    update += f", {rate.tag} {number(rate.at)})" if rate is not None else ")"
    return (
        Story(view, root, others)
        .because(
            f"{' and '.join(s.tag for s in watched(view))} stayed stable up to the previous step, and {update}",
            *(f.message for f in others[:2] if f is not jump),
        )
        .against(None if rate is not None else "no learning rate is logged: it may have jumped")
        .disproved_by(
            "the step also fails in a replay with the previous batch (then the weights were damaged before it)"
        )
        .advise(
            f"check the samples of step {root.step}: extreme values, labels out of range, a wrong scale",
            clip(view, root.step),
            "skip or repair that batch, and resume from before it: the weights after it are damaged",
        )
        .replay()
        .diagnosis(
            "bad-batch",
            f"The training was stable up to the previous step: {jump.message}. The loss of a step is computed before "
            f"its update, so the batch of step {root.step} {'is likely' if rate is not None else 'may be'} at fault.",
            "likely" if rate is not None else "possible",
        )
    )


def _batch(view: View, root: Finding) -> str:
    """The batch of the root's step; where not every step is logged, one of the steps since the last finite row."""
    before = root.evidence.get("last_finite_step")
    series = next((s for s in view.series if s.tag == root.tag), None)
    if before is None and series is not None and root.step is not None:
        earlier = series.step[series.step < root.step]
        before = int(earlier[-1]) if len(earlier) else None
    if isinstance(before, int) and root.step is not None and root.step - before > 1:
        return f"a batch of steps {before + 1} to {root.step}"
    return f"the batch of step {root.step}"
