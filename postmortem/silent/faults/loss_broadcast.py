from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._losses import line_of, lines, mostly
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial, losses_get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import LossComputed
    from postmortem.silent.look import Look

_FUNCTIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def _paired(prediction: Any, target: Any) -> tuple[Any, Any] | None:
    if prediction.shape == target.shape or prediction.numel() != target.numel():
        return None
    return prediction, target.reshape(prediction.shape)


@fault
class LossBroadcast(BaseFault):
    """Prediction and target have different numbers of dimensions, such as [B, 1] and [B], so the loss compares every
    prediction with every target: the best possible answer is the mean of all targets.

    How it is found: at each step, the two shapes broadcast to more elements than either has, or a difference that
    involves a prediction [B, 1], or one that was squeezed from it to [B], has the shape [B, B]; also in the program's
    own formulas, such as a Gaussian likelihood.

    Not blamed: shapes with the same number of dimensions, as in losses over all pairs; a target with a single value for
    all; shapes that broadcast to that of the prediction.

    What to do: `prediction.squeeze(1)` or `target.unsqueeze(1)`.

    How to confirm: print both shapes before the loss.
    """

    code = "TRN013"
    name = "loss-broadcast"
    family = "loss-output"
    checks = "prediction and target have the same shape"
    trial = Trial("the target in the shape of the prediction", losses_get(_paired, *_FUNCTIONS))

    def seen(self, look: Look) -> str:
        return _seen.losses(look, *_FUNCTIONS, "difference")

    def blames(self, look: Look) -> Iterator[Blame]:
        for losses in lines(look, *_FUNCTIONS, "difference", values=False):
            shown = [x for x in losses if prod(x.prediction) > 1]
            if len(shown) < len(losses) / 2 or not mostly(shown, _grows):
                continue
            last = shown[-1]
            batch = prod(last.prediction)
            whole = _together(last)
            got = f"{last.name} got a prediction {list(last.prediction)} and a target {list(last.target or ())}"
            if last.name == "difference":
                got = f"the difference of a prediction {list(last.prediction)} and the target is {list(whole)}"
            yield self.blame(
                line_of(last),
                f"at {count(len(shown), 'step')} {got}: {prod(whole)} differences for {batch} predictions",
                confirm="print both shapes before the loss, and train once with equal ones",
                prediction=list(last.prediction),
                target=list(last.target or ()),
                seen=len(shown),
            )


def _grows(loss: LossComputed) -> bool:
    one, other = loss.prediction, loss.target or ()
    if loss.name == "difference":  # the shape of what came out
        column = (len(one) == 2 and one[1] == 1) or (len(one) == 1 and loss.squeezed)
        return column and one[0] > 1 and other == (one[0], one[0])
    return len(one) != len(other) and prod(_together(loss)) > max(prod(one), prod(other))


def _together(loss: LossComputed) -> tuple[int, ...]:
    """The shape that both broadcast to."""
    one, other = loss.prediction, loss.target or ()
    longest = max(len(one), len(other))
    padded = [(1,) * (longest - len(shape)) + tuple(shape) for shape in (one, other)]
    return tuple(max(a, b) for a, b in zip(*padded, strict=True))
