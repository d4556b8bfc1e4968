from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._initials import SPREAD, set_at
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Activated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_LOOKS = 4
_FIRST, _LATER = 0.6, 0.4
_ALMOST_ALL = 0.9
_GAIN = 2.0
_INPUTS = 5.0
_WIDTH = 4


@fault
class SaturatedActivations(BaseFault):
    """The outputs of a tanh or sigmoid layer are at its bounds, where the slope is nearly 0: almost no gradient passes.

    How it is found: at every measured step from the first one on, most values of a hidden layer (60 % at the first
    step) are within 1 % of the bounds, and the weights before it are large enough to cause this alone: the norm of a
    unit's weights is above 2, while the inputs have a usual size.

    Not blamed: the last layer, whose values may reach the bounds because the model is confident; layers that saturate
    because their inputs are large.

    Where a replay looks for the reason of a plateau it also names a hidden layer with over 90 % of its values at the
    bounds at every measured step, whatever brings them there (a bias, large inputs).

    What to do: scale the initial weights by fan-in (`nn.init.xavier_uniform_`).

    How to confirm: `(tanh_output.abs() > 0.99).float().mean()` of one batch.
    """

    code = "TRN062"
    name = "saturated-activations"
    family = "initialisation"
    because_of = ("inputs-not-normalised",)
    checks = "hidden tanh and sigmoid layers are not saturated"
    trial = Trial("initial weights as torch makes them", model_changes.usual_initials)

    def seen(self, look: Look) -> str:
        return _seen.of(
            look,
            Activated,
            "tanh or sigmoid",
            "looks at a tanh or sigmoid",
            lambda a: a.function in ("tanh", "sigmoid"),
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        layers = _layers(look)
        if layers and max(len(s) for s in layers.values()) < _LOOKS:
            raise NotChecked(f"fewer than {_LOOKS} steps were measured")
        yield from self._of({p: seen for p, seen in layers.items() if len(seen) >= _LOOKS and _saturated(seen)}, look)

    def of_plateau(self, look: Look) -> Iterator[Blame]:
        layers = {p: seen for p, seen in _layers(look).items() if len(seen) >= _LOOKS}
        yield from self._of({p: s for p, s in layers.items() if all(one.flat >= _ALMOST_ALL for one in s)}, look)

    def _of(self, bad: dict[tuple[int, ...], list[Activated]], look: Look) -> Iterator[Blame]:
        if not bad:
            return
        parameters, seen = min(bad.items())
        yield self.blame(
            set_at(look, parameters[::-1], SPREAD),
            f"{seen[0].flat:.0%} of the {seen[0].function} outputs after {look.name(parameters[-1])} are within 1 % of "
            f"the bounds at step {seen[0].step}, and {seen[-1].flat:.0%} at step {seen[-1].step}; the weights of a "
            f"unit have a norm of {seen[0].gain:.2g}, for inputs of size {seen[0].inputs or 0:.2g}; "
            f"{count(len(bad), 'such layer')} in total",
            confirm="print (output.abs() > 0.99).float().mean() of the tanh for one batch",
            first=seen[0].flat,
            last=seen[-1].flat,
            gain=seen[0].gain,
            layers=len(bad),
        )


def _layers(look: Look) -> dict[tuple[int, ...], list[Activated]]:
    """The hidden layers with bounds, by their parameters."""
    layers: dict[tuple[int, ...], list[Activated]] = defaultdict(list)
    for one in look.of(Activated):
        if one.function != "relu" and one.width >= _WIDTH and one.hidden:
            layers[one.parameters].append(one)
    return layers


def _saturated(seen: list[Activated]) -> bool:
    """From the start, by the weights."""
    first = seen[0]
    usual = first.inputs is not None and first.inputs < _INPUTS
    return first.flat >= _FIRST and all(s.flat >= _LATER for s in seen) and first.gain >= _GAIN and usual
