from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Place
from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.source import Source, source
from postmortem.silent.weight_facts import TargetsMatched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_LESS = 0.8
_LABELS = re.compile("label|target")


@fault
class LabelsShiftedTwice(BaseFault):
    """Labels are shifted when the batch is built and again when the loss is computed: the model learns to predict the
    token after the next one.

    How it is found: the targets of the cross entropy are the input tokens two positions after the position whose output
    they are compared with; no other loss has the next token as its target.

    Not blamed: next-token losses, also if the first positions are left out; models that predict several tokens.

    What to do: shift once: `logits[:, :-1]` with `ids[:, 1:]`, or labels that the model shifts itself.

    How to confirm: print one row of the input and of the targets side by side.
    """

    code = "TRN070"
    name = "labels-shifted-twice"
    family = "sequence"
    checks = "targets are not shifted twice"

    def seen(self, look: Look) -> str:
        return _seen.of(
            look,
            TargetsMatched,
            "loss whose targets are tokens of the input",
            "losses whose targets are tokens of the input",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        seen = look.of(TargetsMatched)
        twice = [t for t in seen if t.shift == 2 and t.other < _LESS]
        if not twice or len(twice) < len(seen):
            return
        yield self.blame(
            _shift_near(twice[0].at),
            f"{twice[0].share:.0%} of the targets are the tokens two positions later, in {len(twice)} of {len(seen)} "
            f"losses compared with the input; the best other shift matches {twice[0].other:.0%}",
            confirm="print one row of the input and of the targets side by side",
            share=twice[0].share,
            other=twice[0].other,
        )


def _shift_near(at: Place | None) -> Place | None:
    """The slice from 1 on that is nearest to the loss, in its function."""
    if at is None:
        return None
    read = source(at.file)
    function = read.function_at(at.line) or read.tree
    slices = [n for n in ast.walk(function) if isinstance(n, ast.Subscript) and _from_one(n.slice)] if function else []
    nearest = min(slices, key=lambda n: (abs(n.lineno - at.line), n.lineno), default=None)
    if nearest is not None and abs(nearest.lineno - at.line) < 8:
        return Place(at.file, nearest.lineno)
    return Place(at.file, line) if (line := _shift_of_labels(read)) is not None else at


def _shift_of_labels(read: Source) -> int | None:
    """The first statement that shifts what it calls labels or targets, as a batch is made of tokens."""
    nodes = list(ast.walk(read.tree)) if read.tree is not None else []
    simple = [n for n in nodes if isinstance(n, (ast.Assign, ast.Return, ast.Expr, ast.AnnAssign))]
    lines = []
    for statement in simple:
        shifts = [n for n in ast.walk(statement) if isinstance(n, ast.Subscript) and _from_one(n.slice)]
        if shifts and _LABELS.search(ast.unparse(statement)):
            lines.append(shifts[0].lineno)
    return min(lines, default=None)


def _from_one(index: Any) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(p, ast.Slice) and isinstance(p.lower, ast.Constant) and p.lower.value == 1 for p in parts)
