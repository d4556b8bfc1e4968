"""A loss or gradient that grows: is there one layer whose gain left its course, and that alone makes the growth?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.culprit import Fix
from postmortem.core.printable import number
from postmortem.replay.culprit.gains import Gains, Held, own_tensors
from postmortem.replay.culprit.investigation import code_at
from postmortem.replay.culprit.stages import stage
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.calm import Left
    from postmortem.replay.culprit.course import Course
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.step.runner import StepRunner

_TRIED = 3  # modules to try
_AFTER = 4  # steps after the first of the jump that have to stay calm


@stage(order=120, of_finding=True)
def exploding_layer(case: Investigation) -> Culprit | None:
    """Answers if the steps stay calm with the weights of one module held, and do not with those of all others held."""
    course = case.course
    if course is None:
        return None
    gains = _gains(course)
    left = [g for g in gains.left(course.first + 1) if g.module]
    if not left:
        case.trail.append("no module's gain (size of its output over that of its input) leaves its course before")
        return None
    told = [f"{g.module} (step {g.step}, {number(g.usual)} to {number(g.gain)})" for g in left[:_TRIED]]
    case.trail.append(f"gains that leave their course, the first first: {', '.join(told)}")
    for found in left[:_TRIED]:
        fix = _alone(course, found)
        if fix is not None:
            return _culprit(case, course, gains, found, fix)
    case.trail.append("none of these layers alone makes the growth")
    return None


def _gains(course: Course) -> Gains:
    """The gains of the steps of the roll up to the second one of the jump."""
    runner, roll = course.runner, course.roll
    runner.restore(roll.start)
    with Gains(runner) as gains:
        for step in range(roll.first, min(roll.last, course.first + 1) + 1):
            batch = runner.draw(step)
            gains.next_step(step)
            runner.run(batch, step)
    return gains


def _until(course: Course) -> int:
    return min(course.roll.last, course.first + _AFTER)


def _alone(course: Course, found: Left) -> Fix | None:
    """The outcome of holding the layer, if it cures and holding everything else does not; None otherwise."""
    runner, begin, until = course.runner, max(course.roll.first, found.step - 1), _until(course)
    runner.restore(course.before(begin))
    mine = own_tensors(runner, found.module)
    others = [t for name, t in own_tensors(runner, "").items() if name not in mine]
    hold_mine, hold_others = Held(list(mine.values())), Held(others)
    peak = course.peak(until, begin=begin)
    if mine:
        held = course.peak(until, begin=begin, each=hold_mine)
        rest = course.peak(until, begin=begin, each=hold_others) if held <= course.limit else -math.inf
        if rest > course.limit:
            what = f"weights of {found.module} held from step {begin} on"
            but = f"with those of all others held it is {number(rest)}"
            said = f"{course.what} at most {number(held)} up to step {until}, not {number(peak)}; {but}"
            return Fix(name="hold_layer", cured=True, how=f"{what}: {said}")
        if held <= course.limit:
            return None

    def everything(step: int) -> None:
        hold_mine(step)
        hold_others(step)

    if course.peak(until, begin=begin, each=everything) <= course.limit:
        return None  # it is the weights, but not those of this layer alone
    held = _at_usual_gain(course, found, begin, until)
    if held > course.limit:
        return None
    what = f"output of {found.module} scaled back to its usual gain from step {begin} on"
    but = "with the weights of all layers held it still grows"
    said = f"{course.what} at most {number(held)} up to step {until}, not {number(peak)}; {but}"
    return Fix(name="hold_layer", cured=True, how=f"{what}: {said}")


def _at_usual_gain(course: Course, found: Left, begin: int, until: int) -> float:
    gains = Gains(course.runner)
    module = _module(course.runner, found.module)

    def back(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        now = gains.gains.get(found.module, {}).get(0, math.nan)
        return output * (found.usual / now) if hasattr(output, "mul") and now > 0 else output

    gains.next_step(0)
    with gains:
        handle = module.register_forward_hook(back, with_kwargs=True)
        try:
            return course.peak(until, begin=begin)
        finally:
            handle.remove()


def _module(runner: StepRunner, name: str) -> Any:
    if name in (m := dict(runner.models)) and name:
        return m[name]
    key, _, rest = name.partition(".") if "" not in runner.models else ("", "", name)
    return runner.models[key].get_submodule(rest)


def _culprit(case: Investigation, course: Course, gains: Gains, found: Left, fix: Fix) -> Culprit:
    file, line = gains.places.get(found.module, (None, None))
    grew = found.gain > found.usual
    kind = {} if grew else {"kind": "gain-lost"}
    case.trail.append(fix.how)
    case.trail += _rates(course, found)
    begin, until = max(course.roll.first, found.step - 1), _until(course)
    norms = [r.grad_norm for r in course.calm(begin + 1) if math.isfinite(r.grad_norm)]
    tried = [fix]
    changes = [("lower_lr", "learning rate × 0.01", Overrides(lr=0.01))]
    if norms:
        what = f"gradient norm at most {number(max(norms))}, the largest of the steps before"
        changes.append(("clip_grad", what, Overrides(clip=max(norms))))
    for name, what, overrides in changes if case.fixes else []:
        peak = course.peak(until, overrides, begin=begin)
        said = f"from step {begin} on: {course.what} at most {number(peak)} up to step {until}"
        tried.append(Fix(name=name, cured=peak <= course.limit, how=f"{what} {said}"))
    return replace(
        case.culprit(cause="exploding-layer" if grew else "dead-layer", phase="forward", established="cured"),
        step=course.sought.step,
        module=found.module,
        file=file,
        line=line,
        code=code_at(file, line),
        tensor={**kind, "usual_gain": found.usual, "gain": found.gain, "since": found.step},
        fixes=tuple(tried) if case.fixes else (),
        how=tuple(case.trail),
    )


def _rates(course: Course, found: Left) -> list[str]:
    """What the optimizer does to the layer in the step before its gain left, beside the step before that."""
    if found.step - 2 < course.roll.first:
        return []
    told = []
    runner = course.runner
    settings: list[dict[str, float]] = []
    for step in (found.step - 2, found.step - 1, found.step):
        runner.restore(course.before(step))
        mine = {id(t) for t in own_tensors(runner, found.module).values()}
        groups = [g for o in runner.optimizers.values() for g in getattr(o, "param_groups", ())]
        of = [g for g in groups if any(id(p) in mine for p in g["params"])]
        settings.append({k: float(of[0][k]) for k in ("lr", "weight_decay") if of and k in of[0]})
    for key in settings[0]:
        values = [s[key] for s in settings if key in s]
        if len(set(values)) > 1:
            what = {"lr": "learning rate", "weight_decay": "weight decay"}[key]
            change = " to ".join(dict.fromkeys(number(v) for v in values))
            told.append(f"the {what} of {found.module} goes from {change} at step {found.step - 1}")
    return told
