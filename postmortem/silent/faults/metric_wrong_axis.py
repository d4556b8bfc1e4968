from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from postmortem.silent.facts import LossComputed, PickCompared, Picked
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_OF_CLASSES = ("cross_entropy", "nll_loss")


@fault
class MetricWrongAxis(BaseFault):
    """A metric is computed over the wrong dimension: the maximum is taken over pixels or samples instead of classes, or
    predictions [B, 1] are compared with labels [B], each with each.

    How it is found: predictions compared with labels were taken (argmax, max) over a dimension that is not the class
    dimension of the loss, or over one with a single element; or a comparison has more elements than either side, or
    compares [T, B] with [B, T] after both were flattened.

    Not blamed: argmax results that are not compared; two dimensions of the same length, which cannot be told apart.

    What to do: `argmax(1)` for logits [B, classes, ...]; compare tensors of the same shape.

    How to confirm: print the shapes of both sides of the comparison.
    """

    code = "TRN050"
    name = "metric-wrong-axis"
    family = "evaluation"
    checks = "predictions compared with labels were taken over the classes"

    def seen(self, look: Look) -> str:
        return _seen.of(look, PickCompared, "comparison of predicted classes", "comparisons of predicted classes")

    def blames(self, look: Look) -> Iterator[Blame]:
        compared = {c.picked: c for c in look.of(PickCompared)}
        picks = [p for p in look.of(Picked) if p.picked in compared]
        if not picks:
            raise NotChecked("no result of argmax or max was compared")
        shapes = {x.prediction for x in look.of(LossComputed) if x.trained and x.name in _OF_CLASSES}
        by_line: dict[object, list[Picked]] = {}
        for pick in picks:
            by_line.setdefault(pick.at, []).append(pick)
        for line in by_line.values():
            axes = [_classes(p.shape, shapes) for p in line]
            single = all(p.shape[p.dim] == 1 and len(p.shape) > 1 for p in line)
            if single or all(axis is not None and p.dim != axis for p, axis in zip(line, axes, strict=True)):
                why = "which has a single element" if single else f"the class dimension of the loss is {axes[0]}"
                yield self.blame(
                    line[0].at,
                    f"the maximum of {list(line[0].shape)} was taken over dimension {line[0].dim}; {why}; "
                    f"the result {list(line[0].result)} was compared with {list(compared[line[0].picked].other)}",
                    confirm="print the shapes of both sides of the comparison",
                    dim=line[0].dim,
                )
                continue
            swapped = [c for p in line if _swapped(p, c := compared[p.picked])]
            if len(swapped) == len(line):
                yield self.blame(
                    swapped[0].at,
                    f"predictions {list(line[0].result)} were compared with labels {list(swapped[0].base)} after both "
                    f"were flattened to {swapped[0].shape[0]} elements, which are then in different orders",
                    confirm="print the shapes of both sides before they are flattened",
                    answers=list(line[0].result),
                    labels=list(swapped[0].base),
                )
                continue
            grown = [c for p in line if _grows(c := compared[p.picked])]
            if len(grown) == len(line):
                yield self.blame(
                    grown[0].at,
                    f"predictions {list(grown[0].shape)} were compared with {list(grown[0].other)}: "
                    f"{prod(grown[0].result)} comparisons for {count(prod(grown[0].shape), 'prediction')}",
                    confirm="print the shapes of both sides of the comparison",
                    result=list(grown[0].result),
                )


def _classes(shape: tuple[int, ...], losses: set[tuple[int, ...]]) -> int | None:
    """The dimension of the classes in a tensor that is like what the loss got; None where that is not sure."""
    found: set[int] = set()
    for loss in losses:
        if len(loss) == len(shape) > 1 and loss[1:] == shape[1:]:
            found.add(1)
        elif len(shape) > 2 and len(loss) == 2 and shape.count(loss[1]) == 1:
            found.add(shape.index(loss[1]))
    axis = found.pop() if len(found) == 1 else None
    return axis if axis is not None and shape.count(shape[axis]) == 1 else None


def _swapped(pick: Picked, compared: PickCompared) -> bool:
    """[T, B] against [B, T], each in one line."""
    flat = len(compared.shape) == len(compared.other) == 1 and len(pick.result) == 2
    whole = flat and compared.shape[0] == compared.other[0] == prod(pick.result)
    return whole and pick.result[0] != pick.result[1] and compared.base == pick.result[::-1] and min(pick.result) > 1


def _grows(compared: PickCompared) -> bool:
    one, other = compared.shape, compared.other
    return len(one) != len(other) and prod(compared.result) > max(prod(one), prod(other))
