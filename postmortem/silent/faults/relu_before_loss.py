from __future__ import annotations

import math
from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.faults import BaseFault, fault
from postmortem.silent.faults._losses import line_of, lines, mostly
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import LossComputed
    from postmortem.silent.look import Look

_BEYOND = 0.05
"""Share of the target that cannot be reached, and of its variance that is lost with it."""
_FLOOR = 0.1
"""Cross entropy that remains however sure the model is, in nats."""
_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits")


@fault
class ReluBeforeLoss(BaseFault):
    """A final activation prevents the output from reaching the targets: a ReLU with targets below 0, a sigmoid with
    targets above 1, a sigmoid or tanh on logits.

    How it is found: the last operation before the loss bounds its output, and part of the targets lies outside of the
    bounds; for cross entropy, the bounds on the logits keep the loss above a floor.

    Not blamed: a ReLU with non-negative targets; a few targets outside of the bounds.

    What to do: end with a linear layer, or scale the targets to the range of the activation.

    How to confirm: print the minimum and maximum of outputs and targets.
    """

    code = "TRN014"
    name = "relu-before-loss"
    family = "loss-output"
    checks = "the model's output can reach the targets"
    because_of = ("double-sigmoid", "softmax-before-cross-entropy", "softmax-wrong-dim")
    trial = Trial("the values before the last activation", model_changes.without_last_activation)

    def blames(self, look: Look) -> Iterator[Blame]:
        kinds = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "difference")
        for losses in lines(look, *kinds, *_LOGITS):
            if not mostly(losses, _unreachable):
                continue
            last = losses[-1]
            low, high = _limits(last)
            reach = f"the {last.behind[0].lower()} before it only returns values from {low:g} to {high:g}"
            if last.name in _LOGITS:
                said = f"{reach}, so the loss cannot fall below {_floor(last):.2g}"
            else:
                share = sum(x.values["beyond"] for x in losses) / len(losses)
                said = f"{reach}, but {share:.0%} of the targets lie outside"
            yield self.blame(
                line_of(last),
                f"at {count(len(losses), 'step')} of {last.name}: {said}",
                confirm="print the minimum and maximum of outputs and targets, and train once without the activation",
                behind=list(last.behind),
                seen=len(losses),
            )


def _limits(loss: LossComputed) -> tuple[float, float]:
    low, high = loss.values.get("limits", (None, None))
    return -math.inf if low is None else low, math.inf if high is None else high


def _unreachable(loss: LossComputed) -> bool:
    if loss.name in _LOGITS:
        return _floor(loss) > _FLOOR
    return bool(min(loss.values.get("beyond", 0.0), loss.values.get("lost", 0.0)) > _BEYOND)


def _floor(loss: LossComputed) -> float:
    """The cross entropy that is left with logits in these limits, where the targets are classes."""
    low, high = _limits(loss)
    if loss.name == "cross_entropy":
        classes = loss.prediction[loss.values["classes"]]
        return math.log(1 + (classes - 1) * math.exp(low - high)) if loss.labels and classes > 1 else 0.0
    below, above = loss.labels.get("0", 0), loss.labels.get("1", 0)
    if not below + above:
        return 0.0
    return (below * math.log1p(math.exp(min(low, 50))) + above * math.log1p(math.exp(-max(high, -50)))) / (
        below + above
    )
