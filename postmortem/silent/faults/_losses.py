"""What several faults ask of the losses that were computed."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Backward, LossComputed, Place
from postmortem.silent.faults.base import NotChecked
from postmortem.silent.source import source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.silent.look import Look

SEEN = 3
"""So often a loss has to be seen."""
_PLAIN = ("NllLoss", "BinaryCrossEntropy", "MseLoss")
MOST = 0.8
"""In so many of those that were looked at."""
_WARM, _EARLY = 20, 100
_STEPS = 40
_CHANCE, _ABOVE = 0.93, 1.2
"""Of the loss that the labels alone would give: between these it is that of a constant prediction."""
_LATE = 0.75
"""Of the same: what the end of a training stays above, when it may have learnt samples by heart."""


def lines(look: Look, *names: str, values: bool = True) -> Iterator[list[LossComputed]]:
    """The losses of these functions that train, by line; those whose values were looked at. Raises NotChecked if no
    line has enough. Several terms may be differences, told apart by what made their predictions."""
    found: dict[tuple[str, Place | None, tuple[str, ...]], list[LossComputed]] = defaultdict(list)
    for loss in look.of(LossComputed):
        if loss.name in names and loss.trained and (loss.values or not values):
            found[loss.name, loss.at, loss.behind if loss.name == "difference" else ()].append(loss)
    enough = [losses for losses in found.values() if len(losses) >= SEEN]
    if not enough:
        raise NotChecked(f"no suitable loss ({', '.join(names[:3])}) was seen {SEEN} times")
    yield from enough


def mostly(losses: list[LossComputed], so: Callable[[LossComputed], Any]) -> bool:
    """Whether it is so in most of them."""
    return sum(bool(so(loss)) for loss in losses) >= MOST * len(losses)


def ending(losses: list[LossComputed]) -> str:
    """The last operation of the prediction, in words."""
    last = losses[-1].behind[0] if losses[-1].behind else ""
    return f", the output of {last.lower()}" if last else ""


def line_of(loss: LossComputed) -> Place | None:
    """Where a loss is computed; of one that the program writes itself, where the name was last assigned that backward
    is called of."""
    at = loss.at
    if at is None or loss.name != "difference":
        return at
    read = source(at.file)
    statement = read.statement_at(at.line)
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)} if statement is not None else set()
    scope: Any = read.function_at(at.line) or read.tree
    assigned = [
        n
        for n in (ast.walk(scope) if scope is not None else ())
        if isinstance(n, ast.Assign) and n.lineno <= at.line and any(_named(t, names) for t in n.targets)
    ]
    return Place(at.file, max(n.lineno for n in assigned), at.function) if assigned else at


def _named(target: ast.AST, names: set[str]) -> bool:
    return isinstance(target, ast.Name) and target.id in names


def plain(backward: Backward) -> bool:
    """Whether the loss is the mean of one of the usual functions, with nothing added; perhaps a known part of it."""
    mean = backward.nodes[1:] if backward.nodes[:1] == ("DivBackward0",) and backward.divided else backward.nodes
    return bool(mean) and mean[0].startswith(_PLAIN)


def constant_prediction(look: Look) -> float | None:
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


def no_prediction(look: Look) -> float | None:
    """The mean squared error of an answer of 0 for all samples."""
    sizes = [
        x.values["size"] for x in look.of(LossComputed) if x.trained and x.name == "mse_loss" and "size" in x.values
    ]
    return fmean(sizes) if len(sizes) > 2 else None


@dataclass(frozen=True, slots=True)
class AgainstConstant:
    """The mean loss of early and of the last steps, and alone: that of the best constant prediction."""

    early: float
    late: float
    alone: float

    @property
    def nothing_early(self) -> bool:
        """Nothing was learnt early, and later nothing but samples by heart."""
        return self.early >= _CHANCE * self.alone and self.late >= _LATE * self.alone

    @property
    def as_constant(self) -> bool:
        """All along it is no better, and not much worse, than a constant prediction."""
        return all(_CHANCE * self.alone <= loss <= _ABOVE * self.alone for loss in (self.early, self.late))


def against_constant(look: Look) -> AgainstConstant | None:
    """None if too few steps with a plain loss of labels were seen."""
    losses = [(b.step, b.loss * b.divided) for b in look.of(Backward) if b.loss is not None and plain(b)]
    early = [loss for step, loss in losses if _WARM <= step < _EARLY]
    alone = constant_prediction(look)
    if len(early) < _STEPS or alone is None:
        return None
    return AgainstConstant(fmean(early), fmean([loss for _, loss in losses][-8:]), alone)
