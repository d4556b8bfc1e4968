from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count, few
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look


@fault
class OptimizerStaleParameters(BaseFault):
    """The optimizer was created before a layer was replaced, re-initialised, copied or moved: it updates tensors that
    the model no longer uses, while the tensors that the model uses are in no optimizer.

    How it is found: an optimizer steps with parameters that never get a gradient, and belong to no module that runs or
    have the shape of others that do; and a backward pass reaches parameters that are in no optimizer and do not change.

    What to do: create the optimizer after the last change of the model.

    How to confirm: compare `{id(p) for p in model.parameters()}` with the ids in `optimizer.param_groups`.
    """

    code = "TRN002"
    name = "optimizer-stale-parameters"
    family = "gradient-flow"
    checks = "the optimizer holds the parameters that the model uses"
    trial = Trial("parameters that no optimizer holds given to the optimizer", changes.completed)

    def seen(self, look: Look) -> str:
        return _seen.some(list(look.held), "parameter in an optimizer", "parameters in optimizers")

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.stepped:
            raise NotChecked("no step of an optimizer was seen")
        unheld = [p for p in sorted(look.reached) if look.untrained(p) and look.registered(p)]
        like = {look.parameters[p].shape for p in unheld}
        for optimizer in look.stepped:
            idle = [p for p in look.held_by(optimizer) if p not in look.reached]
            # the module of one may have run before it was replaced, as to see whether shapes fit; one that is frozen is
            # not in the place of another
            ran = [p for p in idle if look.parameters[p].shape in like and p not in look.frozen]
            stale = [p for p in idle if p not in look.owners or p in ran]
            shapes = {look.parameters[p].shape for p in stale}
            instead = [p for p in unheld if look.parameters[p].shape in shapes] or unheld
            if not stale or not instead:
                continue
            names = [look.name(p) for p in instead]
            yield self.blame(
                look.optimizers[optimizer].stack,
                f"{count(len(stale), 'parameter')} of this {look.optimizers[optimizer].type} never got a gradient, and "
                f"the trained model has others in their place: {few(names)}, which no optimizer holds",
                confirm="create the optimizer right before the training loop, and compare the loss",
                stale=len(stale),
                held=len(look.held_by(optimizer)),
                unheld=len(unheld),
                names=names[:20],
            )
