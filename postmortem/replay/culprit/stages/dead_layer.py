"""A training that does not learn: a rate of zero, parameters that do not move, dead or saturated layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.printable import number
from postmortem.replay.culprit.activity import Activity, movement
from postmortem.replay.culprit.investigation import code_at, owner
from postmortem.replay.culprit.stages import stage

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.activity import Layer, Movement
    from postmortem.replay.culprit.investigation import Investigation

_STEPS = 3  # that parameters are watched for
_WORDS = {
    "frozen": "requires_grad is False",
    "not-in-optimizer": "the optimizer does not hold it",
    "no-gradient": "it gets no gradient: nothing of it enters the loss, or the graph is cut",
    "zero-gradient": "its gradient is zero",
    "gradient": "it has a gradient, but the update was skipped or rounded away",
    "zero-rate": "the learning rate of its group is zero",
}
_CAUSES = ("frozen", "not-in-optimizer", "no-gradient")
_LAYERS = {
    "dead-units": "units are zero for every sample",
    "saturated": "values are within 1 % of a bound",
    "constant-output": "values are the same for every sample",
}
_MOST = 0.5  # of all parameters: if so many do not move, the model does not learn


@stage(order=140, of_finding=True)
def dead_layer(case: Investigation) -> Culprit | None:
    """Answers for a training that does not learn, from a few steps at the finding."""
    rolled, sought = case.reruns.rolled, case.sought
    if sought is None or sought.kind != "still" or rolled is None:
        return None
    runner, roll = rolled.runner, rolled.roll
    runner.restore(roll.start)
    moved = movement(runner, roll.first, min(_STEPS, roll.last - roll.first + 1))
    case.trail.append(_moved(moved))
    rates = {r.lr for r in roll.results}
    if rates == {0.0} or (moved.still and not moved.moved and set(moved.still.values()) == {"zero-rate"}):
        case.trail.append(f"the learning rate is 0 from step {roll.first} to {roll.last}")
        found = case.culprit(cause="learning-rate-zero", phase="optimizer", established="observed")
        return replace(found, step=sought.step, how=tuple(case.trail))
    runner.restore(roll.start)
    batch = runner.draw(roll.first)
    with Activity(runner) as activity:
        runner.run(batch, roll.first, until="loss")
    layer, still = activity.silent(), _still(moved)
    if layer is not None and (still is None or still[1] not in _CAUSES):
        return of_layer(case, layer, activity)
    return None if still is None else _of_parameters(case, moved, *still)


def _moved(moved: Movement) -> str:
    share = f"{100 * moved.moved / max(1, moved.total):.0f} % of the {moved.total} parameters"
    if not moved.still:
        return f"in {_STEPS} steps, every parameter tensor changes"
    why = ", ".join(f"{n} tensors: {_WORDS[kind]}" for kind, n in Counter(moved.still.values()).most_common())
    return f"in {_STEPS} steps, tensors with {share} change; not: {why}"


def _still(moved: Movement) -> tuple[str, str] | None:
    """(the first parameter that does not move, why), if most of the model does not."""
    if moved.moved > _MOST * moved.total:
        return None
    kinds = Counter(kind for kind in moved.still.values() if kind in _CAUSES)
    if not kinds:
        return None
    kind = kinds.most_common(1)[0][0]
    return next(name for name, of in moved.still.items() if of == kind), kind


def _of_parameters(case: Investigation, moved: Movement, name: str, kind: str) -> Culprit:
    assert case.sought is not None
    same = [n for n, k in moved.still.items() if k == kind]
    case.trail.append(f"{len(same)} parameter tensors from {name} on: {_WORDS[kind]}")
    found = case.culprit(cause="dead-layer", phase="parameters", established="observed")
    return replace(
        found,
        step=case.sought.step,
        module=owner(name),
        param=name,
        tensor={"kind": kind, "tensors": len(same), "moved": moved.moved, "parameters": moved.total},
        how=tuple(case.trail),
    )


def of_layer(case: Investigation, layer: Layer, activity: Activity) -> Culprit:
    """The culprit for a dead, saturated or constant layer."""
    assert case.sought is not None
    share = f"{100 * layer.share:.0f} % of its {_LAYERS[layer.kind]}"
    said = f"{layer.function} after {layer.module}" if layer.kind != "constant-output" else layer.module
    case.trail.append(f"{said or 'the root module'}: {share}")
    others = [f"{o.module} {number(o.share)}" for o in activity.layers if o.key != layer.key][:6]
    if others:
        case.trail.append(f"shares of other layers: {', '.join(others)}")
    facts: dict[str, Any] = {"kind": layer.kind, "share": layer.share, "units": layer.units}
    return replace(
        case.culprit(cause="dead-layer", phase="forward", established="observed"),
        step=case.sought.step,
        module=layer.module,
        op=layer.function,
        file=layer.file,
        line=layer.line,
        code=code_at(layer.file, layer.line),
        tensor=facts,
        how=tuple(case.trail),
    )
