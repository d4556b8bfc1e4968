from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import ModuleRan
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._cuts import CUTS, cut_of_output, cuts
from postmortem.silent.faults._words import count, few
from postmortem.silent.source import called, place_of, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_STEPS = 4


@fault
class GraphDetached(BaseFault):
    """A tensor between trained parameters and the loss is detached from the graph (`.detach()`, `.data`, `no_grad`,
    `.item()`, numpy, argmax), so the layers before it never learn.

    How it is found: an optimizer steps with parameters that require gradients and whose modules run in these steps, but
    no backward pass reaches them.

    Not blamed: modules whose parameters are in no optimizer that steps (a target network); parameters that the program
    changes itself (an average of others); modules that do not run; modules in which some parameters get a gradient.

    What to do: pass the tensor on without detaching it; if only a copy for logging is needed, detach the copy.

    How to confirm: print `[n for n, p in model.named_parameters() if p.grad is None]` after `backward()`.
    """

    code = "TRN003"
    name = "graph-detached"
    family = "gradient-flow"
    because_of = ("optimizer-stale-parameters",)
    checks = "the backward pass reaches the modules that are trained"

    def seen(self, look: Look) -> str:
        return _seen.some(
            list(look.reached), "parameter that a backward pass reaches", "parameters that a backward pass reaches"
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.stepped:
            raise NotChecked("no step of an optimizer was seen")
        for optimizer, steps in look.stepped.items():
            held = look.held_by(optimizer)
            if len(steps) < _STEPS or not look.reached:
                continue  # no backward pass was seen
            if not look.reached.intersection(held) and any(s.none < s.parameters for s in steps):
                continue  # it has gradients of another origin
            frozen = look.frozen
            cut = [p for p in held if p not in look.reached and p not in frozen and p in look.owners]
            cut = [p for p in cut if not look.moved.get(p)]  # an average that the program updates itself
            for parameters in _by_call(look, cut).values():
                ran = _outermost(look, parameters)
                if ran is None or (not look.ended and _sometimes(ran)):
                    continue
                names = [look.name(p) for p in parameters]
                dead = "" if ran.connected else "; its output requires no gradient"
                yield self.blame(
                    _cut(ran, look.modules[ran.module].at),
                    f"{count(len(parameters), 'parameter')} ({few(names)}) are in the optimizer and their modules run, "
                    f"but no backward pass reached them in {count(len(steps), 'step')}{dead}",
                    confirm="print the names of the parameters whose .grad is None after backward()",
                    parameters=len(parameters),
                    steps=len(steps),
                    names=names[:20],
                )


def _by_call(look: Look, cut: list[int]) -> dict[str, list[int]]:
    """Those of one direct child of a root together: a cut is behind the whole of it, as a rule."""
    groups: dict[str, list[int]] = defaultdict(list)
    for parameter in cut:
        owner = look.owners[parameter]
        first = owner.name.split(".")[0]
        groups[f"{owner.root} {first}"].append(parameter)
    return groups


def _outermost(look: Look, parameters: list[int]) -> ModuleRan | None:
    """How the outermost module ran that has only parameters of these."""
    lost = set(parameters)
    modules = {look.owners[p].module for p in parameters}
    names = {look.owners[p].name for p in parameters}
    root = look.owners[parameters[0]].root
    prefixes = {".".join(n.split(".")[:i]) for n in names for i in range(1, len(n.split(".")) + 1)} | {""}
    whole = []
    for module in look.modules.values():
        if module.root != root or module.name not in prefixes:
            continue
        below = [m for m in look.modules.values() if m.root == root and _inside(m.name, module.name)]
        if all(set(m.parameters.values()) <= lost for m in below):
            whole.append(module)
    outer = min(whole, key=lambda m: len(m.name), default=None)
    wanted = {outer.module} if outer is not None else modules
    ways = [ran for ran in look.of(ModuleRan) if ran.module in wanted and ran.stack]
    return next((r for r in ways if r.training), ways[0] if ways else None)


def _sometimes(ran: ModuleRan) -> bool:
    """Whether a condition decides that a module runs in this way: it may run in another one later."""
    return any(source(place.file).around(place.line, ast.If, ast.IfExp) for place in ran.stack[:2])


def _inside(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")


def _cut(ran: ModuleRan, forward: Place | None) -> Place:
    """The line that cuts, if the source shows it near the call, or in the module's own forward; else the call."""
    if forward is not None and ran.grad and not ran.connected and (place := _within(forward)) is not None:
        return place
    for place in ran.stack[:4]:
        read = source(place.file)
        around = read.around(place.line, ast.With)
        for node in reversed(around):
            for item in node.items:
                if called(item.context_expr) in CUTS:
                    return place_of(place.file, item.context_expr)
        function = read.function_at(place.line)
        for decorator in function.decorator_list if function is not None else ():
            if _name(decorator) in CUTS:
                return place_of(place.file, decorator)
        found = cut_of_output(place)
        if found is not None:
            return found
    return ran.stack[0]


def _within(forward: Place) -> Place | None:
    """The first thing in a function that cuts, or a decorator of it."""
    read = source(forward.file)
    starts = [n for n in read.functions() if min([n.lineno, *(d.lineno for d in n.decorator_list)]) == forward.line]
    for function in starts:
        for decorator in function.decorator_list:
            if _name(decorator) in CUTS:
                return place_of(forward.file, decorator)
        for node in sorted(_nodes(function), key=lambda n: n.lineno):
            if cuts(node):
                return place_of(forward.file, node)
    return None


def _nodes(function: Any) -> list[Any]:
    return [n for n in ast.walk(function) if isinstance(n, (ast.Call, ast.Attribute))]


def _name(node: ast.AST) -> str:
    return called(node) or (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""))
