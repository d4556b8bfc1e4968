from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import ModuleRan
from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._words import count, few
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import ModuleSeen, Stack
    from postmortem.silent.look import Look


@fault
class UnregisteredSubmodules(BaseFault):
    """Sub-modules are stored where PyTorch does not look for them, such as a plain list or dict, so `parameters()`, the
    optimizer, `state_dict()` and `to(device)` miss them.

    How it is found: a module ran inside the model's forward, but is not among the model's `modules()`; the backward
    pass reaches its parameters, no optimizer holds them, and they do not change.

    Not blamed: modules in eval mode or without gradients (a frozen network that is hidden on purpose); modules whose
    parameters an optimizer holds.

    What to do: use `nn.ModuleList`, `nn.ModuleDict` or an attribute per module instead of the list or dict.

    How to confirm: `len(list(model.parameters()))` before and after the change.
    """

    code = "TRN001"
    name = "unregistered-submodules"
    family = "gradient-flow"
    checks = "every module that runs in a model is registered in it"
    trial = Trial("the parameters given to the optimizer", changes.completed)

    def seen(self, look: Look) -> str:
        return _seen.some(list(look.modules), "module", "modules")

    def blames(self, look: Look) -> Iterator[Blame]:
        evaluating = {ran.module for ran in look.of(ModuleRan) if not ran.training}
        groups: dict[tuple[int, str, str], list[ModuleSeen]] = defaultdict(list)
        for module in look.modules.values():
            lost = [p for p in module.parameters.values() if look.untrained(p)]
            if lost and not module.registered and module.module not in evaluating:
                groups[module.root, module.holder, module.name].append(module)
        for (root, holder, attribute), modules in groups.items():
            parameters = sorted({p for m in modules for p in m.parameters.values()})
            kinds = few(sorted({m.type for m in modules}))
            yield self._hidden(look, look.modules[root], holder, attribute, parameters, kinds)
        for module in look.modules.values():
            for attribute, hidden in module.hidden.items():
                if lost := [p for p in hidden if look.untrained(p)]:
                    yield self._hidden(look, look.modules[module.root], module.type, attribute, lost, "parameters")

    def _hidden(
        self, look: Look, root: ModuleSeen, holder: str, attribute: str, parameters: list[int], kinds: str
    ) -> Blame:
        where = f"{holder}.{attribute}" if holder else f"what {root.type} calls"
        return self.blame(
            _assigned(look, parameters, holder),
            f"{count(len(parameters), 'parameter')} in {where} get gradients, but {root.type}.parameters() does not "
            f"have them, no optimizer holds them, and they did not change in {count(look.steps, 'step')}",
            confirm=f"keep {where} in an nn.ModuleList, nn.ModuleDict or nn.ParameterList, and count again",
            parameters=len(parameters),
            kinds=kinds,
            steps=look.steps,
        )


def _assigned(look: Look, parameters: list[int], holder: str) -> Stack:
    """Where the modules were made: from the frame of the class that holds them on, if it made them itself."""
    stack = next((look.parameters[p].made for p in parameters if look.parameters[p].made), ())
    inside = [i for i, place in enumerate(stack) if place.function.startswith(f"{holder}.") and holder]
    return stack[inside[-1] :] if inside else stack[-1:] and stack
