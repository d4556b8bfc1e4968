from __future__ import annotations

from statistics import median_high
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._inputs import training_inputs
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import LayerInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_SEEN = 3
_APART = 1e3
_CALM = ("Norm", "Embedding", "Whitening")
"""Types of first layers to which the scale does not matter."""


@fault
class InputsNotNormalised(BaseFault):
    """Input features differ in scale or offset by orders of magnitude: the largest dominate the others, or all of them
    saturate the first layer.

    How it is found: the columns of a tabular input have sizes (root mean square) that differ by a factor of 1000 or
    more, or all columns have a size above 1000; and the first layer of the model is not a normalisation.

    Not blamed: models that begin with batch norm, layer norm or an embedding, or that scale the inputs themselves
    before their first layer; constant columns.

    What to do: subtract the mean and divide by the standard deviation of the training data, column by column.

    How to confirm: print `x.mean(0)` and `x.std(0)` of a batch.
    """

    code = "TRN043"
    name = "inputs-not-normalised"
    family = "data"
    checks = "the columns of the inputs have similar scales"
    trial = Trial("the inputs standardised by the first batch", changes.standardised)

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
            apart = large >= _APART * small
            if any(word in first for word in _CALM) or not _unlike(small, large):
                continue
            if got and not _unlike(*_usual(got)):
                continue  # the model scales them itself
            what = "columns" if len(seen[0].shape) == 2 else "elements"
            how = f"a factor of {large / small:.2g} apart" if apart else "all larger than 1000"
            yield self.blame(
                seen[0].at,
                f"the {what} of the inputs {list(seen[0].shape)} have sizes from {small:.2g} to {large:.2g}, {how}, "
                f"in {len(sizes)} batches; the first layer is {first}",
                confirm="print x.mean(0) and x.std(0) of a batch, and train once with (x - mean) / std",
                smallest=small,
                largest=large,
            )
        if not judged:
            raise NotChecked(f"fewer than {_SEEN} floating-point inputs were given to a model")


def _usual(sizes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The medians of the smallest and of the largest sizes."""
    return median_high(s[0] for s in sizes), median_high(s[1] for s in sizes)


def _unlike(small: float, large: float) -> bool:
    return large >= _APART * small or small >= _APART
