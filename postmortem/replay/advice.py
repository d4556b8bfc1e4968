"""What to do after a replay: repairs that cured the step, with the values of the log, the best established first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.diagnoses.shared.schedule import clip, lower_rate, rate_at, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.view import View
    from postmortem.diagnoses.shared.schedule import Rate
    from postmortem.replay.model import Culprit

_PRECISIONS = {"fp32": "fp32", "bf16": "bf16 in place of fp16", "fp64": "fp64"}


def advice(culprit: Culprit, view: View | None, checkpoint: str) -> tuple[str, ...]:
    """Sentences in the order of their evidence; none where there is no culprit.

    A repair of the line or of the data comes before one of the precision, that before one of the whole training. `view` is of the run's
    log: the learning rate and the gradient norm in it give the values.
    """
    if culprit.phase == "none":
        return ()
    said = [*_of_the_line(culprit), *_of_the_data(culprit), *_of_the_precision(culprit, view), *_of_the_training(culprit, view)]
    said = said or list(_nothing_cured(culprit))
    if culprit.phase == "parameters":
        return (*said, f"do not resume from {checkpoint}: its state is at fault")
    return (*said, f"{'then ' if said else ''}resume from {checkpoint}{'' if said else ', once the fault is repaired'}")


def _cured(culprit: Culprit, *names: str) -> dict[str, str]:
    return {f.name: f.how for f in culprit.fixes if f.cured and f.name in names}


def _of_the_line(culprit: Culprit) -> Iterator[str]:
    place = f"{culprit.file}:{culprit.line}"
    if culprit.suggestion:
        new = [line[1:].strip() for line in culprit.suggestion.splitlines() if line.startswith("+") and not line.startswith("+++")]
        yield f"{place}: `{' '.join(new)}` (cured the step)"
    elif how := _cured(culprit, "eps").get("eps"):
        yield f"{how} (cured the step)"
    elif culprit.fresh_state and culprit.cause != "divergence":
        yield "start the optimizer's state afresh (cured the step)"


def _nothing_cured(culprit: Culprit) -> Iterator[str]:
    if culprit.file and culprit.op and culprit.fixes:
        shapes = [str(t["shape"]) for t in culprit.tensor.get("inputs") or () if "shape" in t]
        given = f", of shape {' and '.join(shapes)}" if shapes else ""
        yield f"look at what {culprit.op} is given at {culprit.file}:{culprit.line}{given}: no general repair cured it"


def _of_the_data(culprit: Culprit) -> Iterator[str]:
    cures = _cured(culprit, "drop_sample", "sanitize_input")
    if "drop_sample" in cures and culprit.samples:
        shown = ", ".join(map(str, culprit.samples[:10])) + (", …" if len(culprit.samples) > 10 else "")
        what, them = ("sample", "it") if len(culprit.samples) == 1 else ("samples", "them")
        yield f"look at {what} {shown} of the batch of step {culprit.step}: without {them} the step is fine"
    if "sanitize_input" in cures and culprit.phase == "data":
        yield f"clean the inputs before the step: {cures['sanitize_input']} (cured the step)"


def _of_the_precision(culprit: Culprit, view: View | None) -> Iterator[str]:
    cures = _cured(culprit, *_PRECISIONS)
    if culprit.cause == "dtype-overflow" and cures:
        where = f"{culprit.file}:{culprit.line}" if culprit.file else "the step"
        shown = [_PRECISIONS[name] for name in ("fp32", "bf16", "fp64") if name in cures][:2]
        yield f"compute {where} in {' or '.join(shown)} (the whole step in it was cured)"
    if _cured(culprit, "loss_scale"):
        at = value_at(view.main("loss_scale"), culprit.step) if view is not None else None
        below = f"the {at:g} of that step" if at is not None else "that of the step"
        yield f"a loss scale below {below}, backing off by half at each overflow (at 1 the step was cured)"


def _rate(view: View, step: int | None) -> Rate | None:
    """The learning rate at `step`, beside the one before it was raised in one go, where it was, however long ago."""
    rate, raw = rate_at(view, step), view.main("lr")
    if rate is None or raw is None or step is None:
        return rate
    x = raw.finite.value[raw.finite.step <= step]
    raised = [i for i in range(1, len(x)) if x[i] > 3 * x[i - 1] > 0]
    return replace(rate, before=float(x[raised[-1] - 1])) if raised and x[raised[-1] :].max() < 1.5 * x[raised[-1]] else rate


def _of_the_training(culprit: Culprit, view: View | None) -> Iterator[str]:
    cures = _cured(culprit, "lower_lr", "clip_grad")
    if "lower_lr" in cures:
        known = lower_rate(view, _rate(view, culprit.step)) if view is not None else "a lower learning rate"
        yield f"{known} ({cures['lower_lr']}: cured)"
    if "clip_grad" in cures:
        limit = clip(view, culprit.step) if view is not None else None
        yield f"{limit or 'clip the gradient norm'} ({cures['clip_grad']}: cured)"
    if culprit.fresh_state and culprit.cause == "divergence":
        yield "start the optimizer's state afresh (the loss then stays at its level)"
