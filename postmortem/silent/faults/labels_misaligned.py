from __future__ import annotations

import ast
from collections import Counter, defaultdict
from itertools import pairwise
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Backward, LoaderBegun, LossComputed, Place
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._inputs import loaders
from postmortem.silent.source import called, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_WARM = 20
_STEPS = 40
_CHANCE = 0.93
"""Of the loss that the labels alone would give: what an early part of the training stays above."""
_LATE = 0.75
"""The same for its end, when it may have learnt samples by heart."""
_PERMUTES = {"randperm", "permutation", "permuted", "shuffle"}
_LOSSES = ("NllLoss", "BinaryCrossEntropy", "MseLoss")


@fault
class LabelsMisaligned(BaseFault):
    """Inputs and labels are permuted or sliced independently of each other, so samples have the labels of other
    samples.

    How it is found: the training loss stays at the value of a predictor that ignores its input (the entropy of the
    labels or the variance of the targets), and inputs and labels are handled separately: the source permutes or slices
    two tensors one after the other, each differently, or reads two shuffling loaders together.

    Not blamed: a target that cannot be predicted, if inputs and labels are handled together.

    What to do: use one permutation for both: `order = torch.randperm(len(x)); x, y = x[order], y[order]`.

    How to confirm: look at a few samples with their labels right before the model.
    """

    code = "TRN045"
    name = "labels-misaligned"
    family = "data"
    checks = "the training loss falls below that of a constant prediction"

    def blames(self, look: Look) -> Iterator[Blame]:
        losses = [b for b in look.of(Backward) if b.loss is not None and _plain(b)]
        early = [b.loss for b in losses if _WARM <= b.step < 100 and b.loss is not None]
        alone = _alone(look)
        if len(early) < _STEPS or alone is None:
            raise NotChecked(f"fewer than {_STEPS} steps with a plain loss of labels were seen")
        late = fmean([b.loss for b in losses if b.loss is not None][-8:])
        if fmean(early) < _CHANCE * alone or late < _LATE * alone:
            return
        found = _together(look) or next((f for f in (_apart(file) for file in _files(losses)) if f), None)
        if found is None:
            raise NotChecked("the loss does not fall below that of a constant prediction, for an unknown reason")
        at, why = found
        yield self.blame(
            at,
            f"the loss stays at {fmean(early):.3g}; the best constant prediction, which ignores the inputs, has "
            f"{alone:.3g}; {why}",
            confirm="look at a few samples with their labels right before the model",
            loss=fmean(early),
            labels_alone=alone,
        )


def _plain(backward: Backward) -> bool:
    """Whether the loss is the mean of one of the usual functions, with nothing added."""
    return bool(backward.nodes) and backward.nodes[0].startswith(_LOSSES)


def _alone(look: Look) -> float | None:
    """The loss of the best answer that is the same for all samples: entropy in nats, or variance."""
    trained = [x for x in look.of(LossComputed) if x.trained]
    classes: Counter[str] = Counter()
    for loss in trained:
        if loss.name in ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"):
            classes.update(loss.labels)
    whole = sum(classes.values())
    if whole:
        return -sum(n / whole * log(n / whole) for n in classes.values()) or None
    spreads = [x.values["spread"] for x in trained if x.name == "mse_loss" and "spread" in x.values]
    return fmean(spreads) or None if len(spreads) > 2 else None


def _together(look: Look) -> tuple[Place | None, str] | None:
    """Two loaders with random order that one line reads."""
    lines: dict[tuple[Place | None, int], set[int]] = defaultdict(set)
    for begun in look.of(LoaderBegun):
        made = loaders(look).get(begun.loader)
        if made is not None and made.order == "random":
            lines[begun.at, begun.step].add(begun.loader)
    at = next((at for (at, _), several in lines.items() if len(several) > 1 and at is not None), None)
    return (at, "two loaders that shuffle independently are read together") if at else None


def _files(losses: list[Backward]) -> list[str]:
    return list(dict.fromkeys(b.at.file for b in losses if b.at is not None))


def _apart(file: str) -> tuple[Place, str] | None:
    """Two statements, one after the other, that permute or cut two names in different ways."""
    tree = source(file).tree
    for block in _blocks(tree) if tree is not None else ():
        ways = [(s, *way) for s in block if (way := _way(s)) is not None]
        for (_, name, kind, index), (second, other, same, differs) in pairwise(ways):
            if name != other and kind == same and (kind == "permutes" or index != differs):
                return Place(file, second.lineno), f"the source {kind} {name} and {other} differently"
    return None


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield [s for s in block if isinstance(s, ast.stmt)]


def _way(statement: ast.stmt) -> tuple[str, str, str] | None:
    """(name, "permutes" or "cuts", index) of `x = x[randperm(n)]`, `shuffle(x)`, `x = x[3:]`."""
    if isinstance(statement, ast.Expr) and called(statement.value) == "shuffle":
        given: Any = statement.value
        return (ast.unparse(given.args[0]), "permutes", "") if given.args else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = ast.unparse(statement.targets[0]), statement.value
    if any(called(n) in _PERMUTES for n in ast.walk(value)):
        return target, "permutes", ""
    if isinstance(value, ast.Subscript) and ast.unparse(value.value) == target:
        return target, "cuts", ast.unparse(value.slice)
    return None
