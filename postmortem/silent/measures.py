"""The part of the checklist that is no fault: what a step costs in time and memory, types and devices, seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from postmortem.core.blame import Check
from postmortem.silent.facts import Backward, Gradients, Seeded
from postmortem.silent.faults._words import count, few
from postmortem.silent.weight_facts import Copied, Held, Kept, Scheduled, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.silent.look import Cycle, Look

_STATES = {"SGD": 1, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "RMSprop": 1, "Adagrad": 1, "Adamax": 2, "Lion": 1}
"""Tensors of the size of a parameter that an optimizer keeps for it; SGD keeps none without momentum."""
_OFTEN = 3
"""So many steps in which a scheduler comes first are no accident."""
_MANY = 0.5
"""Part of a step that waits for data, from which on the training is held up by it."""


def measures(looks: Sequence[Look]) -> list[Check]:
    """These lines of the checklist, of the process with the most steps."""
    look = max(looks, key=lambda each: each.steps, default=None)
    return list(_lines(look)) if look is not None and look.steps else []


def _lines(look: Look) -> Iterator[Check]:
    yield _time(look)
    yield _memory(look)
    yield _kinds(look)
    yield _trained(look)
    yield _order(look)
    seeds = sorted({s.seed for s in look.of(Seeded) if s.step == 0})
    if seeds:
        yield Check("seeds", "ok", f"set before the first step: {', '.join(map(str, seeds[:4]))}")
    else:
        yield Check("seeds", "not ok", "no seed was set before the first step: two runs will differ")


def _time(look: Look) -> Check:
    took = next(iter(look.of(Took)), None)
    whole = sum(took.parts.values()) if took is not None else 0.0
    if took is None or not whole:
        return Check("step-time", "not checked", "fewer than 5 steps were seen")
    if took.queued:
        why = "work is queued on a device; `postmortem run --level advanced` has times"
        return Check("step-time", "not checked", why)
    parts = [f"{name} {seconds / whole:.0%}" for name, seconds in took.parts.items() if seconds >= 0.005 * whole]
    each = f"{1e3 * whole:.3g} ms a step (medians of {took.steps}): {', '.join(parts)}"
    if took.parts.get("data", 0.0) > _MANY * whole:
        return Check("step-time", "not ok", f"{each}; it mostly waits for the loader")
    return Check("step-time", "ok", each)


def _memory(look: Look) -> Check:
    kept = look.of(Kept)
    if not kept:
        return Check("memory", "not checked", "fewer than 3 steps were seen")
    parts = {
        "parameters": sum(k.parameters for k in kept),
        "gradients": sum(k.gradients for k in kept),
        "optimizer": sum(k.state for k in kept),
        "activations": max(k.activations for k in kept),
    }
    expected = sum(k.parameters * (2 + _STATES.get(k.optimizer, 0)) for k in kept)
    measured = parts["parameters"] + parts["gradients"] + parts["optimizer"]
    said = ", ".join(f"{name} {_size(size)}" for name, size in parts.items())
    names = ", ".join(dict.fromkeys(k.optimizer for k in kept))
    usual = f"estimate for {names}: up to {_size(expected)} without activations"
    peaks = [k.peak for k in kept if k.peak]
    device = f"; at most {_size(max(peaks))} were allocated on the device" if peaks else ""
    more = all(k.optimizer in _STATES for k in kept) and measured > 1.1 * expected
    return Check("memory", "not ok" if more else "ok", f"{said} ({usual}){device}")


def _kinds(look: Look) -> Check:
    found: dict[tuple[str, str], int] = {}
    for held in look.of(Held):
        for dtype, device, number in held.kinds:
            found[str(dtype), str(device)] = found.get((str(dtype), str(device)), 0) + int(number)
    if not found:
        return Check("types-and-devices", "not checked", "fewer than 3 steps were seen")
    said = ", ".join(f"{n} {dtype} on {device}" for (dtype, device), n in found.items())
    mixed = {device.partition(":")[0] for _, device in found}
    more = "; on several kinds of devices" if len(mixed) > 1 else ""
    return Check("types-and-devices", "not ok" if more else "ok", f"parameters: {said}{more}")


def _trained(look: Look) -> Check:
    """What the optimizers change, and what is frozen. A frozen matrix of zeros adds nothing to what it is multiplied
    with: the new part of an adapter that was to be trained looks so."""
    name = "trained-parameters"
    last = {g.optimizer: g for g in look.of(Gradients)}
    held = {p for optimizer in last for p in look.held_by(optimizer)}
    frozen = {p for g in last.values() for p in g.frozen if not look.moved.get(p)}
    every = [p for p in look.parameters if p in held or p in look.owners]
    if not held or not every:
        return Check(name, "not checked", "no step of an optimizer was looked at")
    trained, left_out = [p for p in every if p in held - frozen], [p for p in every if p not in held]
    size = {p: math.prod(look.parameters[p].shape) for p in every}
    values, of = sum(size[p] for p in trained), sum(size.values())
    if len(trained) == len(every):
        return Check(name, "ok", f"all {count(len(every), 'parameter')} ({of:,} values)")
    share = f"{100 * values / max(of, 1):.3g} %"
    said = f"{len(trained)} of {count(len(every), 'parameter')} ({values:,} of {of:,} values, {share})"
    if trained:
        said += f": {few([look.name(p) for p in trained])}"
    if mine := [p for p in every if p in frozen]:
        said += f"; held by an optimizer but frozen: {few([look.name(p) for p in mine])}"
    if left_out:
        said += f"; in no optimizer: {few([look.name(p) for p in left_out])}"
    idle = [p for p in every if p not in trained and _new(look, p)]
    if idle:
        are = "is a matrix" if len(idle) == 1 else "are matrices"
        said += (
            f". {few([look.name(p) for p in idle])} {are} of zeros and not trained: what it is multiplied with adds "
        )
        said += "nothing. Worth a look if it belongs to an adapter"
    return Check(name, "not ok" if idle else "ok", said, told=True)


def _order(look: Look) -> Check:
    """A scheduler that is stepped before the optimizer, after the backward pass of the same step: it is no fault that
    keeps a training from learning, but the first rate is never used, and every other one a step early."""
    name = "scheduler-order"
    cycles = [cycle for optimizer in look.stepped for cycle in look.cycles(optimizer) if cycle.of(Scheduled)]
    if not cycles:
        return Check(name, "not checked", "none seen: no step of a scheduler beside one of its optimizer")
    early = [cycle for cycle in cycles if _scheduled_late(cycle)]
    if len(early) < _OFTEN:
        return Check(
            name, "ok", f"the scheduler steps after the optimizer in {len(cycles) - len(early)} of {len(cycles)}"
        )
    at = early[-1].of(Scheduled)[-1].at
    where = f" (line {at.line})" if at is not None else ""
    return Check(
        name,
        "not ok",
        f"in {len(early)} of {count(len(cycles), 'look')} scheduler.step(){where} runs between backward() and "
        "optimizer.step(): the first learning rate is never used, and every other one a step early",
    )


def _scheduled_late(cycle: Cycle) -> bool:
    """Whether the last of these calls comes after the last backward pass."""
    kinds = [type(fact) for fact in cycle.between if isinstance(fact, (Backward, Scheduled))]
    return Backward in kinds and kinds[-1] is Scheduled


def _new(look: Look, parameter: int) -> bool:
    """A matrix of zeros that stays so, in a model that is trained; not one of a copy, as of averaged weights."""
    seen, owner = look.parameters[parameter], look.owners.get(parameter)
    if (owner is not None and owner.module not in look.trained) or any(
        c.parameter == parameter for c in look.of(Copied)
    ):
        return False
    return seen.zero and not look.moved.get(parameter) and sum(length > 1 for length in seen.shape) > 1


def _size(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"
