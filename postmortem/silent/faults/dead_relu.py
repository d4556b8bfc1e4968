from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._initials import CONSTANT, SPREAD, set_at
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Activated, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_LOOKS = 4
_DEAD = 0.9
_WIDTH = 8


@fault
class DeadRelu(BaseFault):
    """Most units of a ReLU layer are 0 for every sample, so they pass on neither activations nor gradients.

    How it is found: at each measured step, over 90 % of a layer's units (8 or more) are 0 after the ReLU for all
    samples of the batch, and at the last measured steps these are the same units. If this is so from the first step,
    the initialisation of the layer is blamed; if it starts later, the optimizer, whose steps were too large.

    Not blamed: units that are dead in some batches only (sparse features); layers with less than 90 % of dead units.

    What to do: initialise biases to 0 and scale the weights by fan-in; a smaller learning rate; LeakyReLU.

    How to confirm: `(relu_output == 0).all(0).float().mean()` of a large batch.
    """

    code = "TRN061"
    name = "dead-relu"
    family = "initialisation"
    because_of = ("inputs-not-normalised", "inputs-collapsed")
    checks = "ReLU units are active"
    trial = Trial("a leaky ReLU in the place of each ReLU", changes.leaky)

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
        yield self.blame(
            at or look.optimizers[look.busiest].stack,
            f"{seen[-1].flat:.0%} of the {seen[-1].width} ReLU units after {look.name(parameters[0])} are 0 for every "
            f"sample at step {seen[-1].step} ({seen[0].flat:.0%} at step {seen[0].step}){_since(seen)}; "
            f"{count(len(dead), 'such layer')} in total",
            confirm="print (output == 0).all(0).float().mean() of the ReLU for a large batch",
            dead=seen[-1].flat,
            first=seen[0].flat,
            width=seen[-1].width,
            layers=len(dead),
            layer=look.name(parameters[0]),
            died=death(look, look.name(parameters[0])),
        )


def death(look: Look, layer: str) -> tuple[int, int] | None:
    """Of a layer, named by its first parameter: the last measured step at which it was not dead, and the first from
    which on it was. None where it was dead from the start, or is not at the end."""
    return _between([one for one in _relus(look) if look.name(one.parameters[0]) == layer])


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
    """In the last half of the looks, or in all."""
    return all(s.flat >= _DEAD for s in seen[len(seen) // 2 :]) and seen[-1].still >= _DEAD
