"""A loss that jumps at one step: do particular samples of its batch carry the jump?"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.culprit import Fix
from postmortem.core.printable import number
from postmortem.replay.culprit.calm import calm_limit
from postmortem.replay.culprit.shares import Shares
from postmortem.replay.culprit.stages import stage
from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.course import Course
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.culprit.shares import Carriers

_SHOWN = 5
_AFTER = 4  # steps after the first of a growth that have to stay calm
_DATA = 0.5  # part of the jump that calm batches may show at the same weights, if the batch is at fault


@stage(order=110, of_finding=True)
def outlier_sample(case: Investigation) -> Culprit | None:
    """Answers if calm batches have their usual loss at the weights of the step, and the step is calm without some
    samples."""
    course = case.course
    if course is None:
        return None
    step = course.first
    trail = case.trail
    before = f"{number(course.level)} (at most {number(course.limit)} is usual)"
    trail.append(f"the {course.what} rises at step {step} to {number(course.value)} from {before}")
    probes = course.probes(step)
    calm = course.at(course.before(step), probes, gradient=course.sought.gradient)
    if not calm or not all(map(math.isfinite, calm)):
        return None
    usual = course.level
    if statistics.median(calm) - usual > _DATA * max(course.value - usual, 0.0) or max(calm) > course.limit:
        said = (
            f"the batches of steps {probes[0]} to {probes[-1]} have a {course.what} of {number(max(calm))} there, too"
        )
        trail.append(f"at the weights before step {step}, {said}: the weights, not the batch")
        return None
    said = f"the batches of steps {probes[0]} to {probes[-1]} have a {course.what} of at most {number(max(calm))} there"
    trail.append(f"at the weights before step {step}, {said}: the batch, not the weights")
    shares = Shares(course, course.reruns(step), step)
    found = shares.carriers(course.limit)
    if found is None:
        trail.append(f"no particular samples of the {shares.samples.size or 'unknown'} in the batch carry it")
        return None
    trail.append(_carry(found, shares))
    if course.sought.kind == "growth" and (later := _highest_without(course, shares, found.samples)) > course.limit:
        trail.append(f"with that step run without them, the {course.what} grows to {number(later)} all the same")
        return None
    tried = _tried(course, shares, found) if case.fixes else []
    stats: dict[str, object] = {"samples_in_batch": shares.samples.size, "share": found.share}
    stats |= {"sample_losses": [found.losses[i] for i in found.samples]} if found.losses else {}
    stats |= {"gradient_norms": [found.norms[i] for i in found.samples]} if found.norms else {}
    cured = case.fixes and tried[0].cured
    return replace(
        case.culprit(cause="outlier-sample", phase="data", established="cured" if cured else "observed"),
        step=step,
        samples=tuple(found.samples),
        tensor=stats,
        fixes=tuple(tried),
        how=tuple(trail),
    )


def _highest_without(course: Course, shares: Shares, samples: Sequence[int]) -> float:
    """The largest value in the steps after the first of a growth, where that one is run without these samples."""
    runner, step = course.runner, course.first
    without = Overrides(batch=shares.samples.drop(samples))
    runner.restore(course.before(step))
    values = []
    for later in range(step, min(course.roll.last, step + _AFTER) + 1):
        batch, change = (runner.again(step), without) if later == step else (runner.draw(later), NOTHING)
        result = runner.run(batch, later, overrides=change)
        values.append(result.grad_norm if course.sought.gradient else result.loss)
    return max((v if math.isfinite(v) else math.inf for v in values), default=-math.inf)


def _carry(found: Carriers, shares: Shares) -> str:
    usual = shares.add_norms(found) if not found.norms else None
    names = ", ".join(map(str, found.samples[:_SHOWN])) + (", …" if len(found.samples) > _SHOWN else "")
    one = len(found.samples) == 1
    said = f"sample{'' if one else 's'} {names} of {shares.samples.size} carr{'ies' if one else 'y'} "
    said += "it" if found.share is None else f"{100 * found.share:.0f} % of the excess"
    if found.losses:
        of = ", ".join(number(found.losses[i]) for i in found.samples[:_SHOWN])
        said += f": loss {of}, in calm batches at most {number(found.calm)}"
    if found.norms:
        of = ", ".join(number(found.norms[i]) for i in found.samples[:_SHOWN])
        said += f"; gradient norm {of}" + ("" if usual is None else f", of other samples {number(usual)}")
    return f"{said} ({found.how})"


def _tried(course: Course, shares: Shares, found: Carriers) -> list[Fix]:
    """The step without the samples, and what it does to calm batches with clipping and a lower rate."""
    step = course.first
    value = shares.without(found.samples)
    how = f"without sample{'s' * (len(found.samples) > 1)} {', '.join(map(str, found.samples[:_SHOWN]))}"
    said = f"the {course.what} was {number(course.value)}"
    if value is None:
        said = "could not be run"
    elif course.sought.gradient:
        said = f"gradient norm {number(value)} instead of {number(course.value)}"
    cured = value is not None and value <= course.limit
    loss = value if cured and not course.sought.gradient else None
    tried = [Fix(name="drop_sample", cured=cured, how=f"{how}: {said}", loss=loss)]
    return tried + limited_updates(course, step)


def limited_updates(course: Course, step: int) -> list[Fix]:
    """The update of `step` with the gradient clipped to the largest calm norm, and without the change of its rate, each
    judged by the loss of calm batches after it."""
    results = course.roll
    usual = [r.grad_norm for r in course.calm(step) if math.isfinite(r.grad_norm)]
    rates = [r.lr for r in course.calm(step)]
    limit = calm_limit([r.loss for r in course.calm(step)][-25:])
    plain = course.after(step)
    changes: list[tuple[str, str, Overrides]] = []
    if usual and results.result(step).grad_norm > max(usual):
        what = f"gradient norm {number(results.result(step).grad_norm)} clipped to {number(max(usual))}"
        changes.append(("clip_grad", f"{what}, the largest of the steps before", Overrides(clip=max(usual))))
    rate = results.result(step).lr
    if rates and rates[-1] > 0 and rate > 1.5 * rates[-1]:
        what = f"learning rate {number(rates[-1])} as in the step before, instead of {number(rate)}"
        changes.append(("lower_lr", what, Overrides(lr=rates[-1] / rate)))
    tried = []
    for name, what, overrides in changes:
        after = course.after(step, overrides)
        if plain <= limit:
            said = f"calm batches have a loss of {number(after)} after the step, {number(plain)} without the change"
            tried.append(Fix(name=name, cured=False, how=f"{what}: {said}: the update does no lasting harm"))
            continue
        said = f"calm batches have a loss of {number(after)} after the step, instead of {number(plain)}"
        tried.append(Fix(name=name, cured=after <= limit, how=f"{what}: {said}"))
    return tried
