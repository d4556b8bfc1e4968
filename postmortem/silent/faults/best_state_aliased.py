from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, fault
from postmortem.silent.source import source
from postmortem.silent.weight_facts import Loaded, Saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look


@fault
class BestStateAliased(BaseFault):
    """The best weights are kept as `model.state_dict()`, whose tensors are the live ones: they go on to change, and
    what is restored or saved later is the last state.

    How it is found: a state that was taken at an earlier step is loaded or, if it was taken under a condition, saved,
    and its tensors are still the memory of the model that was trained since.

    Not blamed: states that are used at the step at which they were taken, copies (`copy.deepcopy`, `.clone()`, a file).

    What to do: `copy.deepcopy(model.state_dict())`.

    How to confirm: compare a tensor of the kept state with the model's right before it is restored: they are equal.
    """

    code = "TRN065"
    name = "best-state-aliased"
    family = "weights"
    checks = "states that are kept are copies"

    def blames(self, look: Look) -> Iterator[Blame]:
        used: list[Loaded | Saved] = [*look.of(Loaded), *look.of(Saved)]
        uses = [u for u in used if u.taken is not None and u.step > u.taken]
        for use in uses:
            if isinstance(use, Saved) and not (use.stack and _conditional(use.stack[0])):
                continue
            verb = "loaded" if isinstance(use, Loaded) else "saved"
            line = f" (line {use.at.line})" if use.at else ""
            yield self.blame(
                use.stack or use.at,
                f"the state that state_dict() gave after {use.taken} steps is {verb} after {use.step}{line}, and its "
                "tensors are the memory of the model, which was trained in between: it holds the last weights",
                confirm="compare the kept state with model.state_dict() right before it is used: they are equal",
                taken=use.taken,
                used=use.step,
            )


def _conditional(place: Place) -> bool:
    """Whether a condition in a loop decides that the state is kept."""
    tests = [n for n in source(place.file).around(place.line, ast.If) if any(_compares(t) for t in ast.walk(n.test))]
    return bool(tests)


def _compares(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE))
