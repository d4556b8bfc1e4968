from __future__ import annotations

from statistics import median_high
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import Backward
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._inputs import training_inputs
from postmortem.silent.faults._losses import constant_prediction, no_prediction, plain
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import LayerInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_SEEN = 3
_APART = 1e3
_APART_AND_LOST = 1e2
_LARGE = 10.0
"""Columns that are all smaller do not dominate: one that is tiny beside them may hold nothing (a guarded division)."""
_FAR = 2.0
_WARM = 20
_CALM = ("Norm", "Embedding", "Whitening")
"""Types of first layers to which the scale does not matter."""


@fault
class InputsNotNormalised(BaseFault):
    """Input features differ in scale or offset by orders of magnitude: the largest dominate the others, or all of them
    saturate the first layer.

    How it is found: the columns of a tabular input have sizes (root mean square) that differ by a factor of 1000 or
    more and the largest is 10 or more, or all columns have a size above 1000; and the first layer of the model is not
    a normalisation. A factor of 100, or sizes above 100, count where the training loss also stays above twice that of a
    constant prediction, and begins far above the loss of a prediction of 0.

    Not blamed: a tiny column beside ordinary ones, as a division by a guarded deviation leaves it; a regression that is
    on its way to large targets; models that begin with batch norm, layer norm or an embedding, or that scale the inputs
    themselves before their first layer; constant columns.

    What to do: subtract the mean and divide by the standard deviation of the training data, column by column.

    How to confirm: print `x.mean(0)` and `x.std(0)` of a batch.
    """

    code = "TRN043"
    name = "inputs-not-normalised"
    family = "data"
    checks = "the columns of the inputs have similar scales"
    trial = Trial("the inputs standardised by the first batch", changes.standardised)

    def seen(self, look: Look) -> str:
        return _seen.of(look, LayerInput, "input of a first layer", "inputs of a first layer")

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for root, seen in training_inputs(look).items():
            sizes = [s.values["sizes"] for s in seen if s.values.get("sizes")]
            first = next((m.type for m in look.modules.values() if m.root == root and m.parameters), "")
            got = [layer.sizes for layer in look.of(LayerInput) if layer.root == root]
            if len(sizes) < _SEEN:
                continue
            judged = True
            small, large = _usual(sizes)
            lost = _lost(look) if not _unlike(small, large) else ""
            limit = _APART_AND_LOST if lost else _APART
            if any(word in first for word in _CALM) or not _unlike(small, large, limit):
                continue
            if got and not _unlike(*_usual(got), limit):
                continue  # the model scales them itself
            what = "columns" if len(seen[0].shape) == 2 else "elements"
            apart = large >= limit * small
            how = f"a factor of {large / small:.2g} apart" if apart else f"all larger than {limit:.0f}"
            yield self.blame(
                seen[0].at,
                f"the {what} of the inputs {list(seen[0].shape)} have sizes from {small:.2g} to {large:.2g}, {how}, "
                f"in {len(sizes)} batches; the first layer is {first}{lost}",
                confirm="print x.mean(0) and x.std(0) of a batch, and train once with (x - mean) / std",
                smallest=small,
                largest=large,
            )
        if not judged:
            raise NotChecked(f"fewer than {_SEEN} floating-point inputs were given to a model")


def _usual(sizes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The medians of the smallest and of the largest sizes."""
    return median_high(s[0] for s in sizes), median_high(s[1] for s in sizes)


def _unlike(small: float, large: float, limit: float = _APART) -> bool:
    return large >= max(_LARGE, limit * small) or small >= limit


def _lost(look: Look) -> str:
    """What is to be said of a loss that stays far above the one that needs no inputs; "" of another one."""
    losses = [(b.step, b.loss) for b in look.of(Backward) if b.loss is not None and plain(b)]
    later = [loss for step, loss in losses if step >= _WARM]
    alone, zero = constant_prediction(look), no_prediction(look)
    if alone is None or len(later) < _WARM or median_high(later) < _FAR * alone:
        return ""
    if zero is not None and median_high(loss for _, loss in losses[:_SEEN]) < _FAR * zero:
        return ""  # the targets are large, not the outputs: the model is on its way to them
    return f"; the loss has a median of {median_high(later):.3g}, where a constant prediction has {alone:.3g}"
