from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._initials import CONSTANT, SPREAD, set_at
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Activated, Rewritten, Updated, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_LOOKS = 4
_DEAD = 0.9
_ALL = 0.999
_LAST = 2
"""Measured steps at the end in which a whole hidden layer is dead: nothing can pass through it, so they may be few."""
_WIDTH = 8
_JUMP = 3.0
"""A change of the norm of a weight beside what the measured updates would add up to in as many steps."""


@fault
class DeadRelu(BaseFault):
    """Most units of a ReLU layer are 0 for every sample, so they pass on neither activations nor gradients.

    How it is found: at each measured step, over 90 % of a layer's units (8 or more) are 0 after the ReLU for all
    samples of the batch, and at the last measured steps these are the same units. If it starts later, it has to be so
    in the last half of them; where all units of a hidden layer are 0, in the last two, of which the second is measured
    right after the first. Steps are measured at growing distances, and once more at the end if `check` ends the
    program; a layer that dies later is not seen. If this is so from the first step, the initialisation of the layer is
    blamed. If it starts later, the line is that of the optimizer, as steps that are too large are the usual reason; a
    jump of the layer's weights that is far above the measured updates is reported as well, because a single step or the
    program itself may have made it; where each step was looked at, it is known which, and the line of a change outside
    of `optimizer.step()` is the one at fault.

    Not blamed: units that are dead in some batches only (sparse features); layers with less than 90 % of dead units; a
    ReLU of the loss itself (a hinge) that is 0 only in the last measured steps.

    What to do: initialise biases to 0 and scale the weights by fan-in; a smaller learning rate; LeakyReLU.

    How to confirm: `(relu_output == 0).all(0).float().mean()` of a large batch.
    """

    code = "TRN061"
    name = "dead-relu"
    family = "initialisation"
    because_of = ("inputs-not-normalised", "inputs-collapsed")
    checks = "ReLU units are active"
    trial = Trial("a leaky ReLU in the place of each ReLU", changes.leaky)

    def seen(self, look: Look) -> str:
        relus = [a for a in look.of(Activated) if a.function == "relu"]
        looks = _seen.some(relus, "ReLU", "looks at a ReLU")
        return f"{looks}, at most {max(a.flat for a in relus):.0%} of the units are 0 for all samples"

    def blames(self, look: Look) -> Iterator[Blame]:
        layers: dict[tuple[int, ...], list[Activated]] = defaultdict(list)
        for one in _relus(look):
            layers[one.parameters].append(one)
        if layers and max(len(s) for s in layers.values()) < _LOOKS:
            raise NotChecked(f"fewer than {_LOOKS} steps were measured")
        dead = {p: seen for p, seen in layers.items() if len(seen) >= _LOOKS and _died(seen)}
        if not dead:
            return
        parameters, seen = min(dead.items(), key=lambda item: (not _from_start(item[1]), item[0]))
        at = set_at(look, _bias_first(look, parameters), CONSTANT | SPREAD) if _from_start(seen) else None
        written = _written(look, parameters, seen)
        why = f"; {_rewritten(look, written)}" if written is not None else _jump(look, parameters, seen)
        yield self.blame(
            at or (written.at if written is not None else None) or look.optimizers[look.busiest].stack,
            f"{seen[-1].flat:.0%} of the {seen[-1].width} ReLU units after {look.name(parameters[0])} are 0 for every "
            f"sample at step {seen[-1].step} ({seen[0].flat:.0%} at step {seen[0].step}){_since(seen)}; "
            f"{count(len(dead), 'such layer')} in total{why}",
            confirm="print (output == 0).all(0).float().mean() of the ReLU for a large batch",
            dead=seen[-1].flat,
            first=seen[0].flat,
            width=seen[-1].width,
            layers=len(dead),
            layer=look.name(parameters[0]),
            died=death(look, look.name(parameters[0])),
        )


class Death(NamedTuple):
    """Of the units of a layer, which is named by its first parameter: the last measured step at which they were active,
    and the first from which on they were not. whole: all of them, of a hidden layer. written: what the program itself
    changed at that step, outside of `optimizer.step()`, and how in words."""

    layer: str
    module: str
    alive: int
    dead: int
    whole: bool
    written: Rewritten | None = None
    how: str = ""


def deaths(look: Look) -> list[Death]:
    """Of all layers that are dead at the end, and were not at first; the one that ran first comes first."""
    layers: dict[tuple[int, ...], list[Activated]] = defaultdict(list)
    for one in _relus(look):
        layers[one.parameters].append(one)
    found = []
    for parameters, seen in sorted(layers.items()):
        between = _between(seen)
        if between is not None:
            after = [one for one in seen if one.step >= between[1]]
            whole = all(one.hidden and one.flat >= _ALL for one in after)
            written, owner = _written(look, parameters, seen), look.owners.get(parameters[0])
            how = _rewritten(look, written) if written is not None else ""
            name, module = look.name(parameters[0]), owner.name if owner is not None else ""
            found.append(Death(name, module, *between, whole, written, how))
    return found


def death(look: Look, layer: str) -> tuple[int, int] | None:
    """The steps of the death of a layer, as `Death` has them; None where it was dead from the start, or is not at the
    end."""
    return next(((each.alive, each.dead) for each in deaths(look) if each.layer == layer), None)


def _between(seen: list[Activated]) -> tuple[int, int] | None:
    alive = next((i for i in reversed(range(len(seen))) if seen[i].flat < _DEAD), None)
    if alive is None or alive + 1 == len(seen):
        return None
    return seen[alive].step, seen[alive + 1].step


def _since(seen: list[Activated]) -> str:
    between = _between(seen)
    if between is None:
        return ""
    alive, dead = between
    return f", since step {dead}" if dead == alive + 1 else f", since a step from {alive + 1} to {dead}"


def _relus(look: Look) -> list[Activated]:
    return [one for one in look.of(Activated) if one.function == "relu" and one.width >= _WIDTH]


def _bias_first(look: Look, parameters: tuple[int, ...]) -> list[int]:
    """Unless it is 0, the bias is the one that kills."""
    zero = {w.parameter for w in look.of(Written) if w.by == "zeros_"}
    return sorted(parameters, key=lambda p: (p in zero, len(look.parameters[p].shape)))


def _from_start(seen: list[Activated]) -> bool:
    return all(s.flat >= _DEAD for s in seen)


def _died(seen: list[Activated]) -> bool:
    """In the last half of the looks, or in all; a whole hidden layer in the last ones."""
    if all(s.flat >= _DEAD for s in seen[len(seen) // 2 :]) and seen[-1].still >= _DEAD:
        return True
    last = sorted({s.step for s in seen})[-_LAST:]
    return len(last) == _LAST and all(s.hidden and s.flat >= _ALL for s in seen if s.step in last)


def _jump(look: Look, parameters: tuple[int, ...], seen: list[Activated]) -> str:
    """That weights of the layer changed by far more than the updates do, when it died."""
    between = _between(seen)
    if between is None:
        return ""
    alive, _ = between
    for parameter in map(str, parameters):
        updates = [u for u in look.of(Updated) if parameter in u.weights]
        before = next((u for u in reversed(updates) if u.step <= alive), None)
        after = next((u for u in updates if u.step > alive), None)
        if before is None or after is None:
            continue
        largest = max(u.changes[parameter] for u in updates)
        change = abs(after.weights[parameter] - before.weights[parameter])
        if change > _JUMP * largest * (after.step - before.step):
            return (
                f"; between steps {before.step} and {after.step} the norm of {look.name(int(parameter))} goes from "
                f"{before.weights[parameter]:.3g} to {after.weights[parameter]:.3g}, but the largest measured update "
                f"of an optimizer step is {largest:.2g}: either a single step was far larger, or the program itself "
                "writes to it"
            )
    return ""


def _written(look: Look, parameters: tuple[int, ...], seen: list[Activated]) -> Rewritten | None:
    """What the program itself changed when the layer died, if that is far more than what the optimizer changes."""
    between = _between(seen)
    if between is None:
        return None
    for fact in look.of(Rewritten):
        if fact.parameter in parameters and between[0] < fact.step <= between[1]:
            key = str(fact.parameter)
            updates = [u.changes[key] for u in look.of(Updated) if u.step < fact.step and key in u.changes]
            if fact.change > _JUMP * max(updates, default=0.0):
                return fact
    return None


def _rewritten(look: Look, written: Rewritten) -> str:
    where = f" (line {written.at.line})" if written.at is not None else ""
    return (
        f"before it, the program itself changes {look.name(written.parameter)} outside of optimizer.step(){where}: its "
        f"norm goes from {written.before:.3g} to {written.after:.3g}"
    )
