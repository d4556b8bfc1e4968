from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.facts import Place
from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._words import few
from postmortem.silent.source import source
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Probed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_NOTHING = 1e-5


@fault
class PositionIdsConstant(BaseFault):
    """All tokens get the same position, so the order of the tokens is lost although the model has positional encodings.

    How it is found: the model has a module, parameter or buffer whose name refers to positions. A copy of the model is
    rerun with two tokens swapped: the first module that mixes positions has the same output after both tokens, although
    that output changes if either token changes.

    Not blamed: models without positions, which treat tokens as a set on purpose; recurrent and convolutional models;
    positions that are added in the attention.

    What to do: use `torch.arange(length)` as position ids, or a table indexed along the sequence dimension.

    How to confirm: swap two tokens of an input and compare the outputs at the positions after both.
    """

    code = "TRN071"
    name = "position-ids-constant"
    family = "sequence"
    checks = "models with positions distinguish the order of tokens"
    trial = Trial("positions 0, 1, 2, ... in the place of one for all", model_changes.counted)

    def seen(self, look: Look) -> str:
        return _seen.of(
            look,
            Probed,
            "model of token sequences with positions",
            "looks at the positions of a model of token sequences",
            lambda p: p.question == "order",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        probed = [p for p in look.of(Probed) if p.question == "order" and p.positions]
        blind = [p for p in probed if p.change < _NOTHING]
        if not blind or len(blind) < len(probed):
            return
        yield self.blame(
            _used(look, blind[0]),
            f"with two tokens swapped, the output of {blind[0].module} after both is the same (step {blind[0].step}), "
            f"although the model has {few(blind[0].positions)}",
            confirm="swap two tokens of an input, and compare the outputs at the positions after both",
            change=blind[0].change,
            step=blind[0].step,
            positions=list(blind[0].positions),
        )


def _used(look: Look, probed: Probed) -> Place | None:
    """The line of a forward that reads the positions."""
    names = {part for name in probed.positions for part in name.split(".") if not part.isdigit()} - {"weight"}
    files = dict.fromkeys(m.at.file for m in look.modules.values() if m.at is not None)
    for file in files:
        for function in source(file).functions():
            if function.name.startswith("__"):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in names and isinstance(node.value, ast.Name):
                    return Place(file, node.lineno)
    return probed.at
