from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.source import source
from postmortem.silent.weight_facts import Loaded, Saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look


@fault
class BestStateAliased(BaseFault):
    """The best weights are kept as `model.state_dict()`, whose tensors share memory with the model: they keep changing
    during training, and what is restored or saved later is the last state.

    How it is found: a state dict that was taken at an earlier step is loaded later into the same model (or saved or
    loaded into another one, if it was taken under a condition), and its tensors still share memory with the model,
    which was trained in between.

    Not blamed: state dicts that are used at the step at which they were taken; one that is taken once, from which
    another model is updated; copies (`copy.deepcopy`, `.clone()`, a file).

    What to do: `copy.deepcopy(model.state_dict())`.

    How to confirm: right before the kept state is restored, compare one of its tensors with the model's: they are
    equal.
    """

    code = "TRN065"
    name = "best-state-aliased"
    family = "weights"
    checks = "kept state dicts are copies"

    def seen(self, look: Look) -> str:
        return _seen.some(
            [*look.of(Loaded), *look.of(Saved)],
            "state dict that was loaded or saved",
            "state dicts that were loaded or saved",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        used: list[Loaded | Saved] = [*look.of(Loaded), *look.of(Saved)]
        uses = [u for u in used if u.taken is not None and u.step > u.taken]
        for use in uses:
            into_itself = isinstance(use, Loaded) and use.alias > 0
            if not into_itself and not (use.stack and _conditional(use.stack[0])):
                continue
            verb = "loaded" if isinstance(use, Loaded) else "saved"
            line = f" (line {use.at.line})" if use.at else ""
            yield self.blame(
                use.stack or use.at,
                f"the state dict taken after {use.taken} steps is {verb} after {use.step}{line}, but its tensors "
                "share memory with the model, which was trained in between: it holds the last weights",
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
