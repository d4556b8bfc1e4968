from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.weight_facts import Untied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look


@fault
class TiedWeightsBroken(BaseFault):
    """Two layers that shared one parameter (tied weights) have different ones at the first step: one of them was
    replaced in between.

    How it is found: one parameter was registered in two modules. When the optimizer steps, they have different
    parameters, or the second module is gone and another one of its class and shape runs in its place. Both are used in
    the training.

    Not blamed: layers that never shared a parameter; tied modules that are not used.

    What to do: tie the weights after the last change of the model.

    How to confirm: `model.head.weight is model.embedding.weight` right before the training loop.
    """

    code = "TRN067"
    name = "tied-weights-broken"
    family = "weights"
    checks = "tied weights are one parameter"

    def seen(self, look: Look) -> str:
        return _seen.some(
            look.of(Untied)
            + [p for p, n in Counter(p for m in look.modules.values() for p in m.parameters.values()).items() if n > 1],
            "parameter that two modules share",
            "parameters that two modules share",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.stepped:
            raise NotChecked("no step of an optimizer was seen")
        for untied in look.of(Untied):
            other = untied.other if untied.other is not None else _in_its_place(look, untied)
            if other is None or not {untied.kept, other} <= look.reached:
                continue
            if look.parameters[other].shape != look.parameters[untied.kept].shape:
                continue
            tie = f" in line {untied.stack[0].line}" if untied.stack else ""
            yield self.blame(
                untied.made or look.parameters[other].made or untied.stack,
                f"{look.name(untied.kept)} and {look.name(other)} were one parameter{tie}, but are two at step "
                f"{untied.step}, each with a gradient of its own",
                confirm="compare the two with `is` right before the training loop",
                step=untied.step,
            )


def _in_its_place(look: Look, untied: Untied) -> int | None:
    """The parameter of the module that replaced the lost one."""
    shape = look.parameters[untied.kept].shape
    root = look.owners[untied.kept].root if untied.kept in look.owners else None
    found = [
        p
        for m in look.modules.values()
        if m.type == untied.lost and m.root == root
        for p in m.parameters.values()
        if p != untied.kept and look.parameters[p].shape == shape
    ]
    return found[0] if len(found) == 1 else None
