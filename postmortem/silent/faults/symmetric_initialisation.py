from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._initials import CONSTANT, set_at
from postmortem.silent.faults._words import count, few
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Rates, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_LOOKS = 3
_STEP, _LAST = 4, 16
_SAME = 1e-5
_DRIFT = 0.02


@fault
class SymmetricInitialisation(BaseFault):
    """All units of a layer start with the same weights and get the same gradient, so they stay the same: the layer
    works like a single unit.

    How it is found: all rows of a trained weight matrix are equal at the first step and at later steps.

    Not blamed: layers that start at 0 and whose rows differ after the first updates (a last layer, a residual branch,
    an adapter); weights that have not moved yet, as at a learning rate that starts at 0; weights that no backward pass
    reaches; biases and normalisations.

    What to do: initialise the weights randomly (the default of the layer, `nn.init.kaiming_uniform_`).

    How to confirm: print `weight.std(dim=0).max()` after some steps: it stays 0.
    """

    code = "TRN060"
    name = "symmetric-initialisation"
    family = "initialisation"
    because_of = (
        "learning-rate-zero",
        "bf16-updates-lost",
        "frozen-parameters-in-optimizer",
        "gradients-cleared-before-step",
        "step-before-backward",
        "graph-detached",
        "gradient-clip-too-small",
    )
    checks = "the units of each layer differ"
    trial = Trial("random values for the equal rows", changes.apart)

    def seen(self, look: Look) -> str:
        return _seen.some(
            list({p for r in look.of(Rows) for p in r.apart}),
            "weight whose units were compared",
            "weights whose units were compared",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        seen = [r for r in look.of(Rows) if r.step <= _LAST]
        if len({r.step for r in seen}) < _LOOKS or seen[-1].step < _STEP:
            raise NotChecked(f"fewer than {_STEP} steps were seen")
        same = [int(p) for p in seen[0].apart if self._always(look, p, seen)]
        same = [p for p in same if p in look.reached and p not in look.frozen and not _is_table(look, p)]
        if not same:
            return
        names = [look.name(p) for p in same]
        yield self.blame(
            set_at(look, same, CONSTANT),
            f"all rows of {few(names)} ({look.parameters[same[0]].shape[0]} units) are equal at the first step and "
            f"still equal at step {seen[-1].step}",
            confirm="print weight.std(dim=0).max() of the layer after some steps",
            names=names[:20],
            parameters=count(len(same), "weight"),
        )

    def _always(self, look: Look, parameter: str, seen: list[Rows]) -> bool:
        """Rounding lets rows drift apart, by little of what they move."""
        mine = [r for r in seen if parameter in r.apart]
        moved = look.moved.get(int(parameter), 0.0)
        begins = mine[0].apart[parameter] <= _SAME * mine[0].largest[parameter]
        last = mine[-1]
        if last.largest[parameter] == mine[0].largest[parameter] and not _has_a_rate(look, int(parameter), last.step):
            return False
        # weights that start at 0 have moved as far as they are large: in a warm-up much less than in the whole look
        far = [min(moved, r.largest[parameter]) if not mine[0].largest[parameter] else moved for r in mine[1:]]
        drifts = [r.apart[parameter] <= _DRIFT * way for r, way in zip(mine[1:], far, strict=True)]
        return begins and mine[-1].step >= _STEP and all(drifts)


def _has_a_rate(look: Look, parameter: int, until: int) -> bool:
    """Whether a learning rate of its optimizer was above 0 in the steps before `until`."""
    known = [r for r in look.of(Rates) if r.step < until and parameter in look.held_by(r.optimizer)]
    return not known or any(rate > 0 for r in known for rate in r.rates)


def _is_table(look: Look, parameter: int) -> bool:
    """Rows of an embedding are no units: those that were not looked up are still what they were."""
    return parameter in look.owners and "Embedding" in look.owners[parameter].type
