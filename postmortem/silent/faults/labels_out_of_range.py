from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._losses import SEEN
from postmortem.silent.faults._words import count
from postmortem.silent.weight_facts import TargetsGiven

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_OF_PROBABILITIES = ("binary_cross_entropy_with_logits", "binary_cross_entropy", "multilabel_soft_margin_loss")
_EXPECTED = {
    **dict.fromkeys(_OF_PROBABILITIES, "values from 0 to 1"),
    "poisson_nll_loss": "counts, which are not negative",
}
_SIGNS = "-1 and 1"


@fault
class LabelsOutOfRange(BaseFault):
    """The targets of a loss are values that it is not defined for: a mask of 0 and 255, or labels 1 and 2 or -1 and 1,
    for binary cross entropy; labels 0 and 1 for a loss of signs. Binary cross entropy has no lower bound then: it
    becomes negative, and the logits grow without end.

    How it is found: at 3 or more of the steps whose values were inspected, targets of `binary_cross_entropy` (with
    logits or not) and `multilabel_soft_margin_loss` lie more than 0.5 outside of 0 to 1, those of `poisson_nll_loss`
    below 0, or `soft_margin_loss`, `hinge_embedding_loss`, `cosine_embedding_loss` and `margin_ranking_loss` get 0 and
    never -1; and a gradient flows back from these targets.

    Not blamed: targets that a mask, a weight of 0 or an index leaves out of the loss, such as 255 for "ignore"; soft
    and smoothed labels; labels with noise, up to 1.5.

    What to do: map the labels to what the loss expects: `mask / 255`, `labels - 1`, `2 * labels - 1`. Leave unlabelled
    elements out of the loss.

    How to confirm: print `target.unique()` before the loss.
    """

    code = "TRN046"
    name = "labels-out-of-range"
    family = "data"
    checks = "targets are values that the loss is defined for"

    def seen(self, look: Look) -> str:
        return _seen.of(look, TargetsGiven, "look at targets", "looks at targets") + (
            f", {_seen.between(v for g in look.of(TargetsGiven) for v in (g.lowest, g.highest))}"
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        found: dict[tuple[str, Place | None], list[TargetsGiven]] = defaultdict(list)
        for given in look.of(TargetsGiven):
            found[given.name, given.at].append(given)
        enough = {key: each for key, each in found.items() if len(each) >= SEEN}
        if not enough:
            raise NotChecked(f"no loss with a limited range of targets was seen {SEEN} times")
        for (name, at), every in enough.items():
            wrong = [given for given in every if given.outside]
            if len(wrong) < SEEN or (name not in _EXPECTED and any(given.lowest < 0 for given in every)):
                continue
            low, high = min(given.lowest for given in wrong), max(given.highest for given in wrong)
            share = sum(given.outside for given in wrong) / len(wrong)
            yield self.blame(
                at,
                f"at {count(len(wrong), 'step')} of {len(every)} that were inspected {name} got targets from {low:.4g} "
                f"to {high:.4g}, {share:.0%} of them outside of what it is defined for: "
                f"{_EXPECTED.get(name, _SIGNS)}{_consequence(name)}",
                confirm="print target.unique() before the loss, and train once with targets in that range",
                seen=len(wrong),
                lowest=low,
                highest=high,
                share=share,
            )


def _consequence(name: str) -> str:
    if name in _EXPECTED:
        return ". With such targets the loss has no lower bound"
    return ". A target of 0 does not count, or counts as both"
