from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import LossComputed, Normalised
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._losses import SEEN, ending, lines, mostly
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_OF_CLASSES = ("cross_entropy", "nll_loss")


@fault
class SoftmaxWrongDim(BaseFault):
    """A softmax runs over the wrong dimension, often the batch: the output for one sample depends on the others, and a
    sample's probabilities do not sum to 1.

    How it is found: the input of the loss (or its exponential) sums to 1 over a dimension that is not the class
    dimension; or a softmax in the model's forward runs over one of the first two dimensions of its input, whose length
    equals the number of targets for batches of different sizes.

    Not blamed: a softmax over a first dimension that is not the batch (steps of a sequence, items of a bag, nodes of
    graphs that all differ in size); one outside of the model, over the only dimension that is longer than 1, or over a
    square matrix of all pairs.

    What to do: `dim=-1`, or the class dimension; `nn.Softmax()` without `dim` takes the first one for inputs with three
    dimensions.

    How to confirm: print `output.sum(1)` of the softmax.
    """

    code = "TRN015"
    name = "softmax-wrong-dim"
    family = "loss-output"
    checks = "a softmax runs over the classes, not over the batch"
    because_of = ("softmax-before-cross-entropy",)
    trial = Trial("a softmax over the last dimension, not the first", changes.softmax_over_last)

    def seen(self, look: Look) -> str:
        return _seen.some(look.of(Normalised) + look.of(LossComputed), "softmax or loss", "calls of a softmax or loss")

    def blames(self, look: Look) -> Iterator[Blame]:
        found = list(self._at_the_loss(look))
        yield from found or self._in_the_model(look)
        if not look.of(Normalised) and not [x for x in look.of(LossComputed) if x.name in _OF_CLASSES]:
            raise NotChecked("no softmax and no loss over classes was seen")

    def _at_the_loss(self, look: Look) -> Iterator[Blame]:
        if sum(x.name in _OF_CLASSES and bool(x.values) and x.trained for x in look.of(LossComputed)) < SEEN:
            return
        for losses in lines(look, *_OF_CLASSES):
            if not mostly(losses, lambda x: _elsewhere(x) is not None):
                continue
            last = next(x for x in reversed(losses) if _elsewhere(x) is not None)
            dim = _elsewhere(last)
            seen, of = count(len(losses), "step"), f"dimension {dim} of {list(last.prediction)}"
            what = f"the input of {last.name}{ending(losses)}{',' if ending(losses) else ''} sums to 1 over {of}"
            if dim not in (_sums(last) or ()):
                what = f"the softmax in front of {last.name} runs over {of}"
            yield self.blame(
                last.at,
                f"at {seen} {what}; the class dimension is {last.values['classes']}",
                confirm="print output.sum(1): it is 1 for probabilities of classes",
                seen=len(losses),
                dim=dim,
            )

    def _in_the_model(self, look: Look) -> Iterator[Blame]:
        found: dict[Place | None, list[Normalised]] = defaultdict(list)
        for each in look.of(Normalised):
            found[each.at].append(each)
        sizes = Counter(x.target[0] for x in look.of(LossComputed) if x.target and x.trained)
        if not sizes or max(sizes.values()) < sizes.total() / 2:
            return  # sets of any size, and no batches
        for at, taken in found.items():
            for dim in (0, 1):
                batches = sorted({t.given[dim] for t in taken if dim < len(t.given)})
                trained = [t for t in taken if t.grad and dim < len(t.given) and t.given[dim] in sizes]
                if len(batches) < 2 or not trained or not all(_over_batch(t, dim) for t in taken):
                    continue
                yield self.blame(
                    at,
                    f"a softmax over dimension {dim} of {list(trained[0].shape)} runs over the batch: its length "
                    f"equalled the batch size for batches of {' and '.join(str(b) for b in batches)} samples",
                    confirm="run the model on one sample alone and on a batch that contains it, and compare the "
                    "outputs",
                    batches=batches,
                )
                break


def _elsewhere(loss: LossComputed) -> int | None:
    """The dimension over which a softmax seems to have run, if it is not that of the classes."""
    found, classes = _sums(loss) or [], loss.values["classes"]
    if classes in found:
        return None
    if found and set(loss.behind) & {"Softmax", "LogSoftmax"}:
        return found[0]
    over: int | None = loss.values.get("over")  # rows that were picked from it do not sum to 1 over that dimension
    return over if over != classes else None


def _sums(loss: LossComputed) -> list[int] | None:
    """The dimensions over which the input of a loss, or its exponential, sums to 1."""
    logs: list[int] | None = loss.values.get("logs")
    ones: list[int] | None = loss.values.get("ones")
    return logs if loss.name == "nll_loss" and logs else ones


def _over_batch(taken: Normalised, dim: int) -> bool:
    """Whether it runs over dimension `dim`, which is also that dimension of the model's input."""
    length = taken.shape[taken.dim]
    square = length > 1 and taken.shape.count(length) > 1
    alone = all(n == 1 for d, n in enumerate(taken.shape) if d != taken.dim)
    whole = taken.dim == dim < len(taken.given) and length == taken.given[dim]
    return whole and not square and (not alone or length == 1)
