from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._losses import lines, mostly
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial, losses_get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import LossComputed
    from postmortem.silent.look import Look

_OF_LOGITS = "binary_cross_entropy_with_logits"


def _logits(given: Any, target: Any) -> tuple[Any, Any] | None:
    inside = given.detach()
    if not given.numel() or float(inside.min()) < 0 or float(inside.max()) > 1:
        return None
    return given.logit(eps=1e-7), target


@fault
class DoubleSigmoid(BaseFault):
    """The output of a sigmoid is given to `BCEWithLogitsLoss`, which applies a sigmoid again: all probabilities lie
    between 0.5 and 0.73.

    How it is found: at each step whose values were inspected, the input of the loss was produced by a sigmoid or a
    softmax and lies between 0 and 1; or two sigmoids in a row precede `binary_cross_entropy`.

    Not blamed: one sigmoid before `binary_cross_entropy`, which expects it; logits that happen to lie between 0 and 1.

    What to do: pass logits to `BCEWithLogitsLoss`, or probabilities to `BCELoss`.

    How to confirm: print the minimum and maximum of the loss's input.
    """

    code = "TRN011"
    name = "double-sigmoid"
    family = "loss-output"
    checks = "binary cross entropy gets logits or probabilities, as it expects"
    trial = Trial(f"logits given to {_OF_LOGITS}", losses_get(_logits, _OF_LOGITS))

    def seen(self, look: Look) -> str:
        return _seen.losses(look, _OF_LOGITS, "binary_cross_entropy")

    def blames(self, look: Look) -> Iterator[Blame]:
        for losses in lines(look, _OF_LOGITS, "binary_cross_entropy"):
            if not mostly(losses, _twice):
                continue
            last = losses[-1]
            yield self.blame(
                last.at,
                f"at {count(len(losses), 'step')} {last.name} got the output of {last.behind[0].lower()}, between "
                f"{min(x.values['lowest'] for x in losses):.2g} and {max(x.values['highest'] for x in losses):.2g}; "
                "a second sigmoid maps it to the range from 0.5 to 0.73",
                confirm="print the range of the loss's input, and train once without the first sigmoid",
                seen=len(losses),
                behind=list(last.behind),
            )


def _twice(loss: LossComputed) -> bool:
    if loss.name == _OF_LOGITS:
        return loss.behind[:1] in (("Sigmoid",), ("Softmax",))
    return loss.behind[:2] == ("Sigmoid", "Sigmoid")
