from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import Backward, Cleared, Place
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._words import count
from postmortem.silent.source import source
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Cycle, Look

_STEPS = 5


@fault
class GradientsClearedBeforeStep(BaseFault):
    """Gradients are cleared after `backward()` and before `step()`, so the step finds no gradients and changes nothing.

    How it is found: at the optimizer's steps no parameter has a non-zero gradient, and zero_grad was called between the
    last backward pass and the step while there were gradients. Or the backward pass reached the parameters, but the
    `.grad` of all of them is None and they do not change.

    What to do: clear gradients before `backward()` or after `step()`.

    How to confirm: print the norm of one gradient right before `step()`.
    """

    code = "TRN007"
    name = "gradients-cleared-before-step"
    family = "step-order"
    because_of = ("step-before-backward",)
    checks = "the optimizer has gradients when it steps"
    trial = Trial("gradients kept from backward to the step", changes.gradients_kept)

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for optimizer in look.stepped:
            cycles = [c for c in look.cycles(optimizer) if c.of(Backward)]
            judged = judged or len(cycles) >= _STEPS
            late = [(c, cleared) for c in cycles if (cleared := _after_backward(c, optimizer)) is not None]
            if len(cycles) < _STEPS:
                continue
            if len(late) < 0.9 * len(cycles):
                yield from self._gone(look, optimizer, cycles)
                continue
            yield self.blame(
                late[0][1].at or late[0][0].step.at,
                f"at {len(late)} of {count(len(cycles), 'step')} zero_grad ran after backward and before the step, "
                "which then found no gradient",
                confirm="print the norm of a gradient right before step()",
                steps=len(cycles),
                cleared=len(late),
            )
        if not judged:
            raise NotChecked(f"fewer than {_STEPS} steps with a backward pass were seen")

    def _gone(self, look: Look, optimizer: int, cycles: list[Cycle]) -> Iterator[Blame]:
        """Gradients that the program itself sets to None."""
        held = set(look.held_by(optimizer))
        filled = [c for c in cycles if any(_reaches(b, held) for b in c.of(Backward))]
        empty = [c for c in filled if c.step.none == c.step.parameters]
        if len(filled) < _STEPS or len(empty) < 0.9 * len(filled) or any(look.moved.get(p) for p in held):
            return
        yield self.blame(
            _set_to_none(empty[0].step.at),
            f"at {len(empty)} of {count(len(filled), 'step')} a backward pass reached parameters of the optimizer, but "
            "none of them had a gradient when it stepped",
            confirm="print the norm of a gradient right before step()",
            steps=len(filled),
            cleared=len(empty),
        )


def _reaches(backward: Backward, held: set[int]) -> bool:
    """Whether it filled gradients of these; a call of autograd.grad fills none."""
    return backward.loss is not None and bool(held.intersection(backward.reached or ()))


def _set_to_none(at: Place | None) -> Place | None:
    """The first line of the file that sets a gradient to None; else the step."""
    tree = source(at.file).tree if at is not None else None
    lines = []
    for node in ast.walk(tree) if tree is not None else ():
        gone = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
        targets = node.targets if gone and isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Delete):
            targets = node.targets
        lines += [t.lineno for t in targets if isinstance(t, ast.Attribute) and t.attr == "grad"]
    return Place(at.file, min(lines), at.function) if at is not None and lines else at


def _after_backward(cycle: Cycle, optimizer: int) -> Cleared | None:
    """What cleared the gradients of the step; None if it had some, or if there were none to clear."""
    if cycle.step.none + cycle.step.zero < cycle.step.parameters:
        return None
    last: Cleared | None = None
    for fact in cycle.between:
        if isinstance(fact, Backward):
            last = None
        elif isinstance(fact, Cleared) and optimizer in fact.optimizers and fact.gradients:
            last = fact
    return last
