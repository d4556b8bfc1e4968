from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count
from postmortem.silent.source import source
from postmortem.silent.weight_facts import Copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Look

_STEPS = 20
_NAMES = ("shadow", "averag", "polyak")
_WORDS = {"ema", "swa", "avg"}


@fault
class EmaNeverUpdated(BaseFault):
    """The averaged copy of the weights that is used for evaluation is never updated: it keeps its initial values while
    the model is trained.

    How it is found: parameters were copied from the model on a line whose names indicate an average (ema, shadow, swa,
    polyak). At the end of the program they are unchanged, while the originals have changed.

    Not blamed: copies that are meant to stay fixed, such as a teacher or a reference model; averages that would have
    started after the program ended.

    What to do: update the average in place (`s.mul_(decay).add_(p, alpha=1 - decay)`, `torch._foreach_lerp_`) after
    each step.

    How to confirm: print the distance of one parameter of the copy from its initial value.
    """

    code = "TRN066"
    name = "ema-never-updated"
    family = "weights"
    checks = "averages of the weights are updated"

    def seen(self, look: Look) -> str:
        return _seen.of(look, Copied, "parameter that is a copy of another one", "parameters that are copies of others")

    def blames(self, look: Look) -> Iterator[Blame]:
        groups: dict[Stack, list[Copied]] = defaultdict(list)
        for copied in look.of(Copied):
            groups[copied.stack].append(copied)
        for stack, copies in groups.items():
            trained = [c for c in copies if look.moved.get(c.origin) and c.parameter in look.moved]
            if not trained or any(look.moved[c.parameter] for c in copies if c.parameter in look.moved):
                continue
            named = next((place for place in stack if _averages(place)), None)
            if named is None or any(c.parameter in look.held for c in copies):
                continue
            if not look.ended or look.steps < _STEPS:
                raise NotChecked("the program was not seen to its end")
            yield self.blame(
                _update_of(named) or stack[0],
                f"{count(len(trained), 'parameter')} copied in line {stack[0].line} for an average did not "
                f"change in {count(look.steps, 'step')}, while those of the model did",
                confirm="print the distance of one parameter of the copy from its first value",
                parameters=len(trained),
                steps=look.steps,
            )


def _averages(place: Place) -> bool:
    """Whether the line, or the function around it, speaks of an average."""
    statement = source(place.file).statement_at(place.line)
    names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)] if statement is not None else []
    names += [n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute)] if statement is not None else []
    return any(_is_average(name) for name in (*names, place.function))


def _is_average(name: str) -> bool:
    words = re.sub(r"([a-z])(?=[A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\2_", name).lower()
    return any(part in words for part in _NAMES) or not _WORDS.isdisjoint(re.split(r"[^a-z]+", words))


def _update_of(place: Place) -> Place | None:
    """The first line in the loop of what is to update the average: a method beside the one that made the copy, or a
    function that is called after it; by its name, or, as of a callback, by its loop over an average."""
    read = source(place.file)
    methods = [m for owner in read.classes(place.function.split(".")[0]) for m in owner.body]
    for group in (methods, [f for f in read.functions() if _is_average(f.name)]):
        for function in (f for f in group if isinstance(f, ast.FunctionDef)):
            loops = [n for n in ast.walk(function) if isinstance(n, ast.For)]
            if any(word in function.name for word in ("update", "step", "__call__")):
                return place._replace(line=(loops[0].body[0] if loops else function.body[-1]).lineno)
            if loops and _averaged(loops[0]):
                return place._replace(line=loops[0].body[0].lineno)
    return None


def _averaged(loop: ast.For) -> bool:
    """Whether it goes through an average and through something else."""
    names = [n.attr for n in ast.walk(loop.iter) if isinstance(n, ast.Attribute)]
    names += [n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name)]
    return isinstance(loop.target, ast.Tuple) and any(map(_is_average, names))
