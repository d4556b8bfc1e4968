"""Where the first values of a parameter were set."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent.source import called, place_of, source
from postmortem.silent.weight_facts import Written

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Look

CONSTANT = {"constant_", "fill_", "zeros_", "ones_", "zero_", "full_like", "ones_like", "zeros_like", "full"}
SPREAD = {"normal_", "uniform_", "mul_", "trunc_normal_", "xavier_normal_", "xavier_uniform_", "orthogonal_"}


def set_at(look: Look, parameters: Sequence[int], by: Collection[str]) -> Place | None:
    """The line that gave these parameters their values: the call of torch.nn.init that did, else one of the calls `by`
    in the file that makes them, else where they are made."""
    written = {w.parameter: w for w in look.of(Written)}
    own = [written[p] for p in parameters if p in written and written[p].stack]
    explicit = [w for w in own if w.by in by and _says(w.stack[0], by)]
    if explicit:
        return explicit[0].stack[0]
    made = next((look.parameters[p].made for p in parameters if look.parameters[p].made), ())
    return _called_in(made, by) or (own[0].stack[0] if own else made[0] if made else None)


def _says(place: Place, names: Collection[str]) -> bool:
    """The line itself calls it, and not a layer of torch that it makes."""
    statement = source(place.file).statement_at(place.line)
    return statement is not None and any(called(node) in names for node in ast.walk(statement))


def _called_in(made: Stack, names: Collection[str]) -> Place | None:
    for file in dict.fromkeys(place.file for place in made):
        for node in source(file).after(0, ast.Call):
            if called(node) in names and isinstance(node.func, ast.Attribute) and _of_weights(node.func.value):
                return place_of(file, node)
    return None


def _of_weights(node: ast.AST) -> bool:
    """`layer.weight`, `p.data`, `parameter`."""
    names = [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    return any(name in {"p", "w", "data", "init"} or "weight" in name or "param" in name for name in names)
