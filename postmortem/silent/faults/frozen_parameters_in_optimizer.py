from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

from postmortem.silent import changes
from postmortem.silent.facts import Gradients
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count, few
from postmortem.silent.source import called, source
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Stack
    from postmortem.silent.look import Look

_STEPS = 3
_MOST = 0.99  # of the values of an optimizer


@fault
class FrozenParametersInOptimizer(BaseFault):
    """All parameters of an optimizer are frozen (`requires_grad=False`), so its steps change nothing.

    How it is found: an optimizer steps repeatedly, and none of its parameters requires a gradient.

    Not blamed: an optimizer with only some frozen parameters; the others are updated as usual. Gradients that the
    program computes by other means and assigns itself (evolution strategies).

    Where a replay looks for the reason of a plateau it also names an optimizer that trains nothing but vectors (biases,
    scales), while all matrices, 99 % of its values or more, are frozen: on its own this is a way of fine-tuning.

    What to do: freeze the layers that should stay fixed, not those passed to the optimizer.

    How to confirm: print `[p.requires_grad for p in optimizer.param_groups[0]["params"]]` before the loop.
    """

    code = "TRN004"
    name = "frozen-parameters-in-optimizer"
    family = "gradient-flow"
    checks = "the optimizers hold parameters that can be trained"
    trial = Trial("the parameters of optimizers require gradients", changes.thawed)

    def seen(self, look: Look) -> str:
        return _seen.some(list(look.held), "parameter in an optimizer", "parameters in optimizers")

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.of(Gradients):
            raise NotChecked("no step of an optimizer was seen")
        for optimizer, steps in look.stepped.items():
            held = look.held_by(optimizer)
            seen = [g for g in look.of(Gradients) if g.optimizer == optimizer]
            if len(seen) < _STEPS or not held or any(set(held) - set(g.frozen) for g in seen):
                continue
            if not look.ended and _thaws(look.optimizers[optimizer].stack):
                continue
            if any(s.norm for s in steps) or any(look.moved.get(p) for p in held):
                continue  # the program gives them gradients that it has estimated itself
            yield self.blame(
                look.optimizers[optimizer].stack,
                f"all {count(len(held), 'parameter')} of this {look.optimizers[optimizer].type} "
                f"({few([look.name(p) for p in held])}) have requires_grad=False: {count(len(steps), 'step')} changed "
                "nothing",
                confirm="print p.requires_grad of the parameters in optimizer.param_groups",
                parameters=len(held),
                steps=len(steps),
            )

    def of_plateau(self, look: Look) -> Iterator[Blame]:
        for optimizer, steps in look.stepped.items():
            held = look.held_by(optimizer)
            frozen = [p for p in held if p in look.frozen]
            trained = [p for p in held if p not in look.frozen]
            size = {p: math.prod(look.parameters[p].shape) for p in held}
            values, all_values = sum(size[p] for p in frozen), sum(size.values())
            if len(steps) < _STEPS or not frozen or values < _MOST * all_values:
                continue
            if any(len(look.parameters[p].shape) > 1 for p in trained):
                continue
            yield self.blame(
                look.optimizers[optimizer].stack,
                f"{len(frozen)} of {count(len(held), 'parameter')} of this {look.optimizers[optimizer].type} "
                f"({values:,} of {all_values:,} values) have requires_grad=False; "
                f"{few([look.name(p) for p in trained]) or 'nothing'} is trained",
                confirm="print p.requires_grad of the parameters in optimizer.param_groups",
                frozen=len(frozen),
                parameters=len(held),
                steps=len(steps),
            )


def _thaws(stack: Stack) -> bool:
    """Whether the source lets parameters require a gradient, later than what was seen of the program."""
    tree = source(stack[0].file).tree if stack else None
    given = [n.args[:1] for n in _all(tree, ast.Call) if called(n) == "requires_grad_"]
    given += [[n.value] for n in _all(tree, ast.Assign) if any(_is_flag(target) for target in n.targets)]
    return any(not (value and isinstance(value[0], ast.Constant) and value[0].value is False) for value in given)


def _all(tree: ast.AST | None, kind: type[ast.AST]) -> list[Any]:
    return [n for n in ast.walk(tree) if isinstance(n, kind)] if tree is not None else []


def _is_flag(target: ast.AST) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "requires_grad"
