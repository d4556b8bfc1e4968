from __future__ import annotations

import ast
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

from postmortem.silent import changes
from postmortem.silent.facts import Forward, InputSeen, ModuleRan, Place
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count, few
from postmortem.silent.source import Source, called, source
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Stack
    from postmortem.silent.look import Look

_ADDS = {"append", "extend", "add"}


@fault
class ParametersMissingFromOptimizer(BaseFault):
    """Parameters that get gradients were not passed to any optimizer, so they keep their initial values.

    How it is found: a backward pass that was followed by a step reaches a parameter that no optimizer of the program
    holds or held, and its values do not change.

    Not blamed: parameters with `requires_grad=False`; networks that were put into eval mode, or of which nothing is
    trained and that compare two inputs in each step (features for a loss); tensors that are not an `nn.Parameter`
    (inputs whose gradient is taken); parameters that the program updates itself.

    What to do: pass them to the optimizer, or freeze them with `requires_grad_(False)` if they should stay fixed.

    How to confirm: compare `{id(p) for p in model.parameters()}` with the ids in `optimizer.param_groups`.
    """

    code = "TRN005"
    name = "parameters-missing-from-optimizer"
    family = "gradient-flow"
    checks = "every parameter that gets a gradient is in an optimizer"
    because_of = ("unregistered-submodules", "optimizer-stale-parameters", "frozen-parameters-in-optimizer")
    trial = Trial("the missing parameters given to the optimizer", changes.completed)

    def seen(self, look: Look) -> str:
        return _seen.some(list(look.held), "parameter in an optimizer", "parameters in optimizers")

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.optimizers:
            raise NotChecked("no optimizer was made")
        evaluating = {ran.module for ran in look.of(ModuleRan) if not ran.training and ran.grad}
        missing = []
        for number in sorted(look.reached):
            owner = look.owners.get(number)
            hidden = owner is not None and (
                not owner.registered or owner.module in evaluating or _compares(look, owner.root)
            )
            if look.untrained(number) and not hidden:
                missing.append(number)
        optimizer = look.busiest
        if not missing or (not look.ended and _adds_later(look.optimizers[optimizer].stack)):
            return
        names = [look.name(p) for p in missing]
        yield self.blame(
            _chosen(look.optimizers[optimizer].stack),
            f"{count(len(missing), 'parameter')} ({few(names)}) get gradients, but no optimizer holds them, and they "
            f"did not change in {count(look.steps, 'step')}",
            confirm="compare the ids of model.parameters() with those in optimizer.param_groups",
            missing=len(missing),
            held=len(look.held_by(optimizer)),
            names=names[:20],
        )


def _adds_later(stack: Stack) -> bool:
    """Whether the source adds groups to optimizers, perhaps later than what was seen of the program."""
    tree = source(stack[0].file).tree if stack else None
    return tree is not None and any(called(n) == "add_param_group" for n in ast.walk(tree))


def _compares(look: Look, root: int) -> bool:
    """A model of which nothing is trained and that is called twice in a step, once with what another one gave: a fixed
    one, whose features of an output and of what this should be are compared."""
    own = {p for m in look.modules.values() if m.root == root for p in m.parameters.values()}
    steps = Counter(f.step for f in look.of(Forward) if f.root == root)
    follows = any(seen.follows for seen in look.of(InputSeen) if seen.root == root)
    return own.isdisjoint(look.held) and follows and median(steps.values()) >= 2


def _chosen(stack: Stack) -> Place | Stack:
    """The last condition that leaves parameters out, in the function that gives the optimizer its groups, or above the
    optimizer where the names it uses are assigned; else where the optimizer is made."""
    if not stack:
        return stack
    at = stack[0]
    read = source(at.file)
    statement = read.statement_at(at.line)
    if statement is None:
        return stack
    calls = {called(n) for n in ast.walk(statement)}
    makers: list[Any] = [f for f in read.functions() if f.name in calls]
    used = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    lines = [line for maker in makers for line in _conditions(maker)]
    return Place(at.file, max(lines or _above(read, at, used), default=at.line), at.function)


def _above(read: Source, at: Place, used: set[str]) -> list[int]:
    scope: Any = read.function_at(at.line) or read.tree
    assigned = [n for n in ast.walk(scope) if isinstance(n, ast.Assign) and n.lineno < at.line]
    mine = [n for n in assigned if any(isinstance(t, ast.Name) and t.id in used for t in n.targets)]
    return [line for n in mine for line in _conditions(n)]


def _conditions(tree: ast.AST) -> list[int]:
    """Lines of conditions on parameters without an alternative, other than on `requires_grad`."""
    found = []
    for node in ast.walk(tree):
        tests = list(node.ifs) if isinstance(node, ast.comprehension) else []
        if isinstance(node, ast.If) and not node.orelse and any(called(n) in _ADDS for n in ast.walk(node)):
            tests.append(node.test)
        found += [t.lineno for t in tests if "requires_grad" not in ast.unparse(t)]
    return found
