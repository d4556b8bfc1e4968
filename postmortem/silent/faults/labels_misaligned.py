from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent.facts import Backward, LoaderBegun, Place
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._inputs import loaders
from postmortem.silent.faults._losses import against_constant, plain
from postmortem.silent.faults._orders import reordered
from postmortem.silent.faults._pairs import apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look


@fault
class LabelsMisaligned(BaseFault):
    """Inputs and labels are permuted or sliced independently of each other, so samples have the labels of other
    samples.

    How it is found: the training loss stays at the value of a predictor that ignores its input (the entropy of the
    labels or the variance of the targets), and inputs and labels are handled separately: the source permutes, draws or
    slices two tensors one after the other, each differently, or permutes or sorts one of two tensors whose rows it uses
    together, or takes the labels from a list before it sorts the list, or reads two shuffling loaders together.

    Not blamed: a target that cannot be predicted, if inputs and labels are handled together.

    What to do: use one permutation for both: `order = torch.randperm(len(x)); x, y = x[order], y[order]`.

    How to confirm: look at a few samples with their labels right before the model.
    """

    code = "TRN045"
    name = "labels-misaligned"
    family = "data"
    checks = "the training loss falls below that of a constant prediction"

    def seen(self, look: Look) -> str:
        return _compared(look)

    def blames(self, look: Look) -> Iterator[Blame]:
        compared = against_constant(look)
        if compared is None:
            raise NotChecked("too few steps with a plain loss of labels were seen")
        if not compared.nothing_early:
            return
        losses = [b for b in look.of(Backward) if b.loss is not None and plain(b)]
        files = _files(losses)
        found = _together(look) or next((f for find in (apart, reordered) for file in files if (f := find(file))), None)
        if found is None:
            raise NotChecked("the loss does not fall below that of a constant prediction, for an unknown reason")
        at, why = found
        yield self.blame(
            at,
            f"the loss is {compared.early:.3g} in the first steps and {compared.late:.3g} in the last ones; the best "
            f"constant prediction, which ignores the inputs, has {compared.alone:.3g}; {why}",
            confirm="look at a few samples with their labels right before the model",
            loss=compared.early,
            labels_alone=compared.alone,
        )


def _compared(look: Look) -> str:
    found = against_constant(look)
    return f"{found.early:.3g} early and {found.late:.3g} at the end, {found.alone:.3g} alone" if found else ""


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
