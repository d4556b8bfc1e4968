from __future__ import annotations

import itertools
from math import prod, sqrt
from statistics import median
from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.facts import Gradients
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Updated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_LAYERS = 5
_LOOKS = 3
_LEARNING = 0.01
"""Steps in which the gradient of the last layer is this small beside its largest one say nothing."""
_SHRINKS = 1e-4
"""Gradient of the first layer beside that of the last one, element by element."""
_STILL = 1e-6
"""Updates of this share of the weights: 0.1 % in 1000 steps."""


@fault
class VanishingGradient(BaseFault):
    """The gradient shrinks from layer to layer in the backward pass, so the first layers do not learn.

    How it is found: at each measured step, the gradient of the first of five or more layers is below 1/10000 of that of
    the last one, it shrinks over most of the layers in between, and the updates of the first layer are below 1/1000000
    of its weights.

    Not blamed: deep networks whose first layers are updated anyway (Adam, which divides by the gradient's size);
    gradients that are exactly 0.

    What to do: ReLU or GELU instead of sigmoid, normalisation or residual connections, initial weights scaled by
    fan-in.

    How to confirm: print the norm of each layer's gradient, from the first to the last.
    """

    code = "TRN063"
    name = "vanishing-gradient"
    family = "initialisation"
    because_of = (
        "saturated-activations",
        "dead-relu",
        "symmetric-initialisation",
        "learning-rate-zero",
        "gradient-clip-too-small",
        "clip-before-unscale",
        "loss-not-scaled",
        "bf16-updates-lost",
        "weight-decay-too-high",
    )
    checks = "gradients reach the first layers"
    trial = Trial("a ReLU in the place of the sigmoid or tanh of each wide layer", model_changes.rectified)

    def blames(self, look: Look) -> Iterator[Blame]:
        for optimizer in look.stepped:
            layers = [p for p in _in_order(look) if p in set(look.held_by(optimizer))]
            if len(layers) < _LAYERS:
                continue
            courses = [c for g in look.of(Gradients) if g.optimizer == optimizer and (c := _course(look, g, layers))]
            courses = [c for c in courses if c[-1] > _LEARNING * max(c[-1] for c in courses)]
            if len(courses) < _LOOKS:
                raise NotChecked(f"fewer than {_LOOKS} steps were measured")
            still = [
                u.changes[str(layers[0])] / u.weights[str(layers[0])]
                for u in look.of(Updated)
                if u.optimizer == optimizer and u.weights.get(str(layers[0]))
            ]
            if not all(_vanishes(course) for course in courses) or not still or median(still) > _STILL:
                continue
            first = courses[0]
            yield self.blame(
                look.parameters[layers[0]].made or look.optimizers[optimizer].stack,
                f"the gradient shrinks from {first[-1]:.2g} in {look.name(layers[-1])} to {first[0]:.2g} in "
                f"{look.name(layers[0])} over {count(len(layers), 'layer')}; the updates of the first one are "
                f"{median(still):.1g} of its weights",
                confirm="print p.grad.norm() of each layer, from the first to the last",
                ratio=first[0] / first[-1],
                layers=len(layers),
                update=median(still),
            )


def _in_order(look: Look) -> list[int]:
    """Weights of layers, in the order in which these ran first."""
    found = [p for m in look.of(Gradients)[:1] for p in map(int, m.norms)]
    ran = [p for m in look.modules.values() for p in m.parameters.values() if m.type != "Embedding"]
    return [p for p in dict.fromkeys(ran) if p in set(found) and len(look.parameters[p].shape) > 1]


def _course(look: Look, gradients: Gradients, layers: list[int]) -> list[float]:
    """Size of an element of the gradient, by layer; [] where some have none."""
    norms = [gradients.norms.get(str(p)) for p in layers]
    if any(not norm for norm in norms):
        return []
    sizes = [sqrt(_elements(look.parameters[p].shape)) for p in layers]
    return [(norm or 0.0) / size for norm, size in zip(norms, sizes, strict=True)]


def _elements(shape: tuple[int, ...]) -> int:
    return max(1, prod(shape))


def _vanishes(course: list[float]) -> bool:
    falls = sum(a < b for a, b in itertools.pairwise(course))
    return course[0] < _SHRINKS * course[-1] and falls >= 0.7 * (len(course) - 1)
