from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import stable_before, watched
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding, Strength
    from postmortem.core.view import View

FORWARD = (
    "look for sqrt, norm, pow, log or division at or near zero in the loss or a custom layer, and add an eps inside; "
    "or for a mean or a softmax over nothing, such as an empty mask"
)
OVERFLOW = (
    "look for what makes an infinity: exp, pow or a product of large values that overflows (weights that grew, inputs "
    "without normalisation), a division by zero, log of zero"
)
_BACKWARD = (
    "look for a function whose derivative is infinite although its value is finite: "
    "sqrt, norm or pow at 0, also inside torch.where()"
)
_ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps", "accumulation_steps")
_NO_TARGETS = (
    "count the targets of the batches from step {step} on that the loss does not ignore (ignore_index, an attention or "
    "padding mask), and log the factors that it is multiplied by"
)
_FEW = 3
_RAMP = "loss or gradient norm were not stable in the ten rows before: the run may have been diverging"


@diagnosis
class Numerics:
    """An operation of the model, the loss or its derivative may have produced NaN or infinity.

    Reported if a metric became non-finite and no other cause fits: neither the loss nor the gradient norm grew by
    orders of magnitude before it (that is a divergence or an explosion), the learning rate and the loss scale did not
    change in a way that explains it, and no sudden change of a stable training points at one batch. If loss or gradient
    norm rose by less, that is named as evidence against. It is a possible cause: a replay of the step can show what the
    log does not. The backward pass is the likely place if the gradient is non-finite at a step whose own loss is logged
    and finite: every step is logged, and the configuration sets no gradient accumulation.
    """

    name = "numerics"
    priority = 55

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        bad = named(findings, *NONFINITE)
        if not bad:
            return None
        root = next((f for f in faults(view, findings) if f.name in NONFINITE), bad[0])
        gradients = [f for f in bad if f.name == "nonfinite-gradient"]
        backward = any(f is root or f.step == root.step for f in gradients)
        masked = any(f.name == "masked-nonfinite" for f in bad)
        no_gradient = any(f.evidence.get("gradient_norm_zero") for f in bad)
        own_loss = (  # a report in words stands at the step printed last, whose loss need not be its own
            backward
            and root.tag is not None
            and root.severity == "error"
            and root.evidence.get("between") is None
            and not _accumulates(view)
        )
        if root.tag is None and root.severity == "error":
            where = "The logged numbers are finite up to there and do not show where it came from"
        elif masked:
            where = _of_a_zero(root, no_gradient)
        elif root.severity == "warning":
            where = (
                "The logged loss stays finite: the updates were likely skipped, as a loss scaler does, or did no harm"
            )
        elif own_loss:
            where = "The loss logged at that step is finite: the fault is likely in the backward pass"
        elif backward:
            where = "The logged loss is finite, but not every step or micro-batch is logged: it may not have been there"
        elif root.evidence.get("finite_after"):
            where = "Later values are finite, so the weights are likely intact; the log does not show whether data or "
            where += "an operation is at fault"
        else:
            where = "The log does not show whether data, forward pass or weights are at fault"
        infinite = root.name == "inf-onset" and root.step is not None and not own_loss
        unknown = root.step is not None and root.severity == "error" and not (own_loss or backward or masked)
        ramp = _enough_before(view, root) and not stable_before(view, root.step)
        strength: Strength = "likely" if own_loss and not masked else "possible"
        return (
            Story(view, root, consequences(findings, root))
            .because(*[f.message for f in bad if f.tag != root.tag or f.name != root.name][:3])
            .against(_RAMP if ramp else None)
            .disproved_by(
                "a replay of the step stays finite (then the fault is not deterministic, as of hardware or a race, "
                "or the batch is a different one)"
            )
            .advise(
                _NO_TARGETS.format(step=root.step) if no_gradient else None,
                f"check the samples of {_steps(root)}: {_extreme(infinite)}" if infinite or unknown else None,
                _BACKWARD if own_loss else OVERFLOW if infinite else FORWARD,
                _unmasked(view) if masked else None,
                lower_rate(view, rate_at(view, root.step)) if ramp else None,
            )
            .replay()
            .diagnosis(
                "numerics",
                f"{root.message.rstrip('.!')}. {where}.",
                strength,
            )
        )


def _enough_before(view: View, root: Finding) -> bool:
    """Whether the loss or gradient norm has rows enough before the fault for a course."""
    return root.step is not None and any(int((s.step < root.step).sum()) >= _FEW for s in watched(view))


def _extreme(infinite: bool) -> str:
    return "an extreme value makes a loss overflow" if infinite else "non-finite or extreme values, empty samples"


def _steps(root: Finding) -> str:
    """The steps that a non-finite value may be of."""
    first, last = root.evidence.get("between") or (root.step, root.step)
    return f"step {last}" if first == last else f"steps {first} to {last}"


def _accumulates(view: View) -> bool:
    """True if, by the configuration, a step has several micro-batches: its logged loss may be that of one of them."""
    return any(count > 1 for _, count in view.settings(*_ACCUMULATION))


def _of_a_zero(root: Finding, no_gradient: bool) -> str:
    """What a loss of exactly 0 may be, beside what the message of the finding says."""
    if root.evidence.get("gradient_norm_not_finite"):
        return "The program likely replaced a non-finite loss by a finite number"
    if no_gradient:
        return "The log does not show which"
    return "It may also be a batch without targets, or a loss that is multiplied by 0"


def _unmasked(view: View) -> str:
    """How to see the non-finite losses that the program replaces: an option of transformers, or its own code."""
    tags = {s.tag.rpartition("/")[2] for s in view.series}
    trainer = any(reading.source == "trainer_state" for reading in view.run.readings)
    if trainer or {"learning_rate", "epoch"} <= tags or any(view.settings("logging_nan_inf_filter")):
        return "set logging_nan_inf_filter=False, so that the log shows non-finite losses"
    return (
        "log the loss before nan_to_num or a filter replaces non-finite values (transformers: logging_nan_inf_filter)"
    )
