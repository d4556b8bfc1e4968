from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING

from postmortem.silent import data_changes
from postmortem.silent.facts import InputSeen, LossComputed
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._inputs import loaders, training_inputs
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Look

_BATCHES = 12
_SAMPLES = 4
_TOLD = 0.6
"""Share of what is to be known of a label that the number of its batch tells."""
_CLASSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")


@fault
class SortedDataNotShuffled(BaseFault):
    """Data that is sorted by class is read in order, so a batch holds one class, and the model learns one class after
    the other.

    How it is found: in the targets of the steps, the batch of a sample determines most of its class, far more than by
    chance, and batches of the same class follow one another.

    Not blamed: data that is read in order but already mixed; rare classes, which most batches lack by chance; two
    alternating classes, such as the real and generated samples of a discriminator; loaders with their own sampler.

    What to do: `DataLoader(..., shuffle=True)`, or permute the samples once.

    How to confirm: print the labels of a few batches.
    """

    code = "TRN041"
    name = "sorted-data-not-shuffled"
    family = "data"
    checks = "the classes are mixed in each batch"
    trial = Trial("batches of the loader shuffled", data_changes.shuffled)

    def seen(self, look: Look) -> str:
        return _seen.of(look, LossComputed, "loss of classes", "losses of classes", lambda x: x.labels)

    def blames(self, look: Look) -> Iterator[Blame]:
        steps: dict[int, Counter[str]] = defaultdict(Counter)
        for loss in look.of(LossComputed):
            if loss.trained and loss.name in _CLASSES and loss.labels and len(loss.target or ()) < 3:
                steps[loss.step].update(loss.labels)
        batches = [steps[s] for s in sorted(steps) if sum(steps[s].values()) >= _SAMPLES]
        classes: Counter[str] = Counter()
        for batch in batches:
            classes.update(batch)
        if len(batches) < _BATCHES or len(classes) < 2:
            raise NotChecked(f"fewer than {_BATCHES} batches of a loss over two or more classes were seen")
        told = _told(batches, classes)
        made = next((loaders(look).get(i.loader) for i in _inputs(look) if i.loader is not None), None)
        if told < _TOLD or not _in_runs(batches, len(classes)) or (made and made.order != "sequential"):
            return
        single = sum(len(batch) == 1 for batch in batches)
        yield self.blame(
            _line(look, made.stack if made else ()),
            f"{single} of {len(batches)} batches hold one class of {len(classes)}, and "
            f"batches of a class follow one another: the batch determines {told:.0%} of the label's information",
            confirm="print the labels of a few batches, and train once with shuffle=True",
            single=single,
            batches=len(batches),
            classes=len(classes),
        )


def _inputs(look: Look) -> list[InputSeen]:
    return [seen for each in training_inputs(look).values() for seen in each]


def _line(look: Look, made: Stack) -> Place | Stack | None:
    """Where the loader was made, or where the model is called."""
    return made or next((seen.at for seen in _inputs(look)), None)


def _told(batches: list[Counter[str]], classes: Counter[str]) -> float:
    """Mutual information of batch and class over the entropy of the classes, less what chance would give."""
    whole = sum(classes.values())
    entropy = -sum(n / whole * log(n / whole) for n in classes.values())
    shared = sum(
        n / whole * log(n * whole / (sum(batch.values()) * classes[c])) for batch in batches for c, n in batch.items()
    )
    chance = (len(batches) - 1) * (len(classes) - 1) / (2 * whole)  # Miller (1955), bias of the plug-in estimate
    return max(0.0, shared - chance) / entropy if entropy else 0.0


def _in_runs(batches: list[Counter[str]], classes: int) -> bool:
    """Whether the class that most samples of a batch have changes seldom, or rises from batch to batch."""
    most = [int(batch.most_common(1)[0][0]) for batch in batches]
    pairs = list(pairwise(most))
    changes = [(a, b) for a, b in pairs if a != b]
    if len(changes) <= len(pairs) / 3:
        return True
    return classes > 2 and sum(b > a for a, b in changes) >= 0.7 * len(changes)
