from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._losses import ending, lines, mostly
from postmortem.silent.faults._words import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import LossComputed
    from postmortem.silent.look import Look

_POSITIVE = 1e-3


@fault
class NllWithoutLog(BaseFault):
    """`nll_loss` (or `kl_div`) gets probabilities or logits instead of log-probabilities: the loss is linear in them,
    and with logits it has no lower bound.

    How it is found: at each step whose values were inspected, the input of the loss has positive values, which a
    log-probability never has, and its exponentials do not sum to 1.

    Not blamed: weighted log-probabilities, which are not positive.

    What to do: apply `log_softmax` before `nll_loss`, or use `cross_entropy` on the logits.

    How to confirm: print `output.exp().sum(1)` before the loss: it is 1 for log-probabilities.
    """

    code = "TRN012"
    name = "nll-without-log"
    family = "loss-output"
    checks = "nll_loss and kl_div get log-probabilities"

    def seen(self, look: Look) -> str:
        return _seen.losses(look, "nll_loss", "kl_div")

    def blames(self, look: Look) -> Iterator[Blame]:
        for losses in lines(look, "nll_loss", "kl_div"):
            if not mostly(losses, _no_logarithm):
                continue
            last = losses[-1]
            what = (
                "probabilities" if mostly(losses, lambda x: x.values.get("ones")) else "values that are not logarithms"
            )
            yield self.blame(
                last.at,
                f"in {count(len(losses), 'step')} {last.name} received {what}{ending(losses)}, up to "
                f"{max(x.values['highest'] for x in losses):.3g}; a log-probability is never above 0",
                confirm="print output.exp().sum(1) before the loss, and train once with log_softmax",
                seen=len(losses),
                highest=max(x.values["highest"] for x in losses),
            )


def _no_logarithm(loss: LossComputed) -> bool:
    values = loss.values
    if loss.name == "kl_div":  # densities may be given; probabilities show themselves
        return values["highest"] > _POSITIVE and values["classes"] in values.get("ones", ())
    return values["highest"] > _POSITIVE and not values["logs"]
