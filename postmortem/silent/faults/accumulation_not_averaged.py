from __future__ import annotations

import ast
from statistics import mode
from typing import TYPE_CHECKING, Any

from postmortem.silent import changes
from postmortem.silent.facts import Accumulated, Backward
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count
from postmortem.silent.source import Source, called, source
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Cycle, Look

_STEPS = 5
_SCALE_FREE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "Adafactor"}
_SCALED = 0.75
"""The gradients that the step uses are smaller than what the backward passes left: they were divided, or clipped."""
_NAMED = (ast.Name, ast.Attribute)
_PARTS = {"chunk", "split", "tensor_split"}
_MEANS = ("Mean", "NllLoss", "MseLoss", "BinaryCrossEntropy", "SmoothL1", "Huber", "L1Loss", "KlDiv")


@fault
class AccumulationNotAveraged(BaseFault):
    """Gradients of N micro-batches are summed instead of averaged, so each update is N times too large.

    How it is found: the same line calls backward several times before each step, and the step waits for a counter or
    for the end of a loop over parts of a batch. Each loss is a mean over its batch; nothing in its graph divides it by
    the number of passes, and the gradients are not divided before the step either.

    Not blamed: losses that are divided or multiplied before backward; a learning rate that is written as a quotient;
    several losses in one step, each on its own line or for a task with parameters of its own; optimizers that do not
    depend on the size of the gradient (Adam).

    What to do: `(loss / accumulation_steps).backward()`.

    How to confirm: compare the gradient norm with that of one large batch of the same samples.
    """

    code = "TRN009"
    name = "accumulation-not-averaged"
    family = "step-order"
    checks = "accumulated gradients are averaged, or there is no accumulation"
    trial = Trial("gradients divided by the number of backward passes", changes.averaged)

    def seen(self, look: Look) -> str:
        return _seen.of(look, Accumulated, "accumulation of gradients", "accumulations of gradients")

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for optimizer in look.stepped:
            cycles = [c for c in look.cycles(optimizer) if c.of(Backward)]
            if len(cycles) < _STEPS:
                continue
            judged = True
            times = mode(len(c.of(Backward)) for c in cycles)
            same = [c for c in cycles if len(c.of(Backward)) == times and _summed(c)]
            kind = look.optimizers[optimizer].type
            if times < 2 or len(same) < 0.8 * len(cycles) or kind in _SCALE_FREE:
                continue
            at = same[0].of(Backward)[0].at
            if at is None or not _counted(at, same[0].step.at) or _quotient(look.optimizers[optimizer].stack):
                continue
            yield self.blame(
                at,
                f"{times} backward passes are summed before each of {count(len(same), 'step')} of {kind}; each loss is "
                f"a mean over its batch, and nothing divides it by {times}",
                confirm=f"divide the loss by {times} before backward(), and compare",
                backwards=times,
                steps=len(same),
            )
        if not judged:
            raise NotChecked(f"fewer than {_STEPS} steps with a backward pass were seen")


def _summed(cycle: Cycle) -> bool:
    """All of its backward passes are of one line and of means, and neither these nor the gradients are scaled."""
    passes = cycle.of(Backward)
    one_line = len({p.at for p in passes}) == 1
    if len({frozenset(p.reached) for p in passes if p.reached is not None}) > 1:
        return False  # a task each, with a head of its own
    norms = [a.norm for a in cycle.of(Accumulated) if a.optimizer == cycle.step.optimizer]
    if norms and cycle.step.norm < _SCALED * norms[-1]:
        return False
    return one_line and all(_is_mean(p.nodes) for p in passes)


def _is_mean(nodes: tuple[str, ...]) -> bool:
    """Whether the loss is a mean, or a sum of such, that nothing scales."""
    first = next((name for name in nodes if not name.startswith(("Add", "Sub"))), "")
    return first.startswith(_MEANS)


def _counted(backward: Place, step: Place | None) -> bool:
    """Whether the source waits with the step for a number of passes, or for all parts of a batch."""
    if step is None:
        return False
    read = source(step.file)
    tests = [node.test for node in read.around(step.line, ast.If)]
    if any(_counts(n, read) for test in tests for n in ast.walk(test) if not _of_main(test)):
        return True
    loops = [loop for loop in source(backward.file).around(backward.line, ast.For) if not _inside(loop, step, backward)]
    return any(called(n) in _PARTS or _named_part(n) for loop in loops for n in ast.walk(loop.iter))


def _counts(node: ast.AST, read: Source) -> bool:
    """A remainder, or a comparison of what counts: the index of a loop, or a name to which one is added."""
    if isinstance(node, ast.Mod) or not isinstance(node, ast.Compare):
        return isinstance(node, ast.Mod)
    nodes = list(ast.walk(read.tree)) if read.tree is not None else []
    loops = [n.target for n in nodes if isinstance(n, ast.For) and called(n.iter) in ("range", "enumerate")]
    added = [n.target for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.value, ast.Constant)]
    counters = {ast.unparse(n) for each in (*loops, *added) for n in ast.walk(each) if isinstance(n, _NAMED)}
    return any(isinstance(n, _NAMED) and ast.unparse(n) in counters for n in ast.walk(node))


def _of_main(test: ast.AST) -> bool:
    """`if __name__ == "__main__"`."""
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))


def _inside(loop: Any, step: Place, backward: Place) -> bool:
    return step.file == backward.file and bool(loop.lineno <= step.line <= loop.end_lineno)


def _named_part(node: ast.AST) -> bool:
    """Whether a name or a key, as in ``config["accum"]``, is that of a number of micro-batches."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value
    return any(word in name.lower() for word in ("accum", "micro"))


def _quotient(stack: Stack) -> bool:
    """Whether the learning rate is written as a quotient, as one that is meant for a sum is, there or where a name that
    it uses is assigned."""
    if not stack:
        return False
    read = source(stack[0].file)
    calls = read.around(stack[0].line, ast.Call)
    values = [word.value for call in calls for word in call.keywords if word.arg == "lr"]
    values += [call.args[1] for call in calls if len(call.args) > 1]
    names = {n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)}
    for node in ast.walk(read.tree) if read.tree is not None else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            values.append(node.value)
    return any(isinstance(n, ast.Div) for value in values for n in ast.walk(value))
