"""A loss that rises because of the update before: was it the learning rate, or the size of the gradient?

A change of the rate is told first; a large gradient only where no layer explains the growth by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.replay.culprit.activity import Activity
from postmortem.replay.culprit.calm import calm_limit
from postmortem.replay.culprit.stages import stage
from postmortem.replay.culprit.stages.dead_layer import of_layer
from postmortem.replay.culprit.stages.outlier_sample import limited_updates

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.replay.culprit.activity import Layer
    from postmortem.replay.culprit.course import Course
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=115, of_finding=True)
def rate_change(case: Investigation) -> Culprit | None:
    """Answers if the learning rate of all parameters rose in the step before the jump, and its usual value keeps the
    loss calm."""
    course = case.course
    if course is None or course.first - 1 <= course.roll.first:
        return None
    step = course.first - 1
    before, now = _rates(course, step - 1), _rates(course, step)
    rose = len(before) == len(now) and all(b > 1.5 * a > 0 for a, b in zip(before, now, strict=True))
    stays = _rates(course, step + 1) == now
    if not rose or (stays and course.sought.kind != "spike"):
        return None  # what makes a growth over many steps is the question of the stage `divergence`
    return _of_update(case, course, "lower_lr")


@stage(order=130, of_finding=True)
def bad_update(case: Investigation) -> Culprit | None:
    """Answers if calm batches have their usual loss before the step before the jump and not after it, and a smaller
    update of that step keeps it."""
    course = case.course
    if course is None or course.sought.kind != "spike" or course.first - 1 <= course.roll.first:
        return None  # what makes a growth over many steps is the question of the stage `divergence`
    return _of_update(case, course)


def _rates(course: Course, step: int) -> list[float]:
    course.runner.restore(course.before(step))
    return [
        float(g["lr"]) for o in course.runner.optimizers.values() for g in getattr(o, "param_groups", ()) if "lr" in g
    ]


def _of_update(case: Investigation, course: Course, cure: str | None = None) -> Culprit | None:
    step = course.first - 1
    before, after = course.at(course.before(step), course.probes(step)), course.after(step)
    limit = calm_limit([r.loss for r in course.calm(step)][-25:])
    if not before or max(before) > limit or after <= limit:
        return None
    tried = limited_updates(course, step)
    cured = [f.name for f in tried if f.cured]
    if not cured or (cure is not None and cure not in cured):
        return None
    results, trail = course.roll, case.trail
    seen = f"the batches of the steps before have a loss of {number(max(before))} before it and {number(after)} after"
    trail.append(f"the update of step {step}: {seen}")
    rate, usual = results.result(step).lr, results.result(step - 1).lr
    norm, norms = results.result(step).grad_norm, [r.grad_norm for r in course.calm(step)]
    trail.append(f"its learning rate is {number(rate)}, {number(usual)} in the step before")
    trail.append(f"its gradient norm is {number(norm)}, at most {number(max(norms))} in the steps before")
    dead = _silenced(course, step) if cure is not None else None
    if dead is not None:
        layer, activity = dead
        found = of_layer(case, layer, activity)
        trail.append("before that update the layer was not so")
        found = replace(found, tensor={**found.tensor, "since": course.first})
    else:
        found = case.culprit(cause="optimizer-update", phase="optimizer")
    return replace(found, step=course.first, established="cured", fixes=_shown(case, tried), how=tuple(trail))


def _shown(case: Investigation, tried: list[Fix]) -> tuple[Fix, ...]:
    return tuple(tried) if case.fixes else ()


def _silenced(course: Course, step: int) -> tuple[Layer, Activity] | None:
    """The first layer that the update of `step` left dead, saturated or constant, still so at the end of the roll."""
    begin, end = _activity(course, step), _activity(course, course.roll.last)
    layer = end.silent()
    if layer is None or any(o.key == layer.key and o.share >= layer.share - 0.2 for o in begin.layers):
        return None
    return layer, end


def _activity(course: Course, step: int) -> Activity:
    course.runner.restore(course.before(step))
    with Activity(course.runner) as activity:
        course.runner.run(course.runner.again(step), step, until="loss")
    return activity
