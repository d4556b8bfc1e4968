from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._losses import ending, lines, mostly
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial, losses_get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import LossComputed
    from postmortem.silent.look import Look


def _logits(given: Any, target: Any) -> tuple[Any, Any] | None:
    inside = given.detach()
    sums = inside.sum(1 if given.dim() > 1 else 0)
    if not given.numel() or float(inside.min()) < 0 or float((sums - 1).abs().max()) > 1e-2:
        return None
    # the logarithm of a softmax is its input but for a constant, which cross entropy does not see
    return given.clamp_min(1e-30).log(), target


@fault
class SoftmaxBeforeCrossEntropy(BaseFault):
    """The output of a softmax is given to cross entropy, which applies log-softmax again: with K classes the loss
    cannot fall below log(1 + (K - 1) / e), and the gradients are small.

    How it is found: at each step whose values were inspected, the input of `cross_entropy` lies between 0 and 1 and
    sums to 1 over the classes; or log-softmax was applied to a softmax before `nll_loss`.

    Not blamed: log-softmax before `cross_entropy`, which changes nothing; a softmax whose output is used elsewhere.

    What to do: pass the logits to the loss; apply softmax only where probabilities are needed.

    How to confirm: print `output.sum(1)` before the loss: logits do not sum to 1.
    """

    code = "TRN010"
    name = "softmax-before-cross-entropy"
    family = "loss-output"
    checks = "cross entropy gets logits"
    trial = Trial("logits given to cross_entropy", losses_get(_logits, "cross_entropy"))

    def seen(self, look: Look) -> str:
        return _seen.losses(look, "cross_entropy", "nll_loss")

    def blames(self, look: Look) -> Iterator[Blame]:
        for losses in lines(look, "cross_entropy", "nll_loss"):
            if not mostly(losses, _twice):
                continue
            last = losses[-1]
            classes = last.prediction[last.values["classes"]]
            floor = math.log(1 + (classes - 1) / math.e)
            yield self.blame(
                last.at,
                f"in {count(len(losses), 'step')} {last.name} received probabilities{ending(losses)}: values between "
                f"{last.values['lowest']:.2g} and {last.values['highest']:.2g} that sum to 1 over the {classes} "
                f"classes; it applies a softmax of its own, so that the loss cannot fall below {floor:.3g}",
                confirm="print output.sum(1) before the loss, and train once with the logits",
                seen=len(losses),
                classes=classes,
                floor=floor,
            )


def _twice(loss: LossComputed) -> bool:
    if loss.name == "nll_loss":
        return loss.behind[:2] == ("LogSoftmax", "Softmax")
    return loss.values["classes"] in loss.values.get("ones", ())
