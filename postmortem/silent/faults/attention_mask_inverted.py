from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.faults import BaseFault, fault
from postmortem.silent.faults._sequences import attention_line
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Probed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_CHANGES = 1e-3
_NOTHING = 1e-5


@fault
class AttentionMaskInverted(BaseFault):
    """The padding mask is inverted: attention reads the padding and hides the tokens.

    How it is found: a copy of the model is rerun twice, once with other embeddings at the padding and once with another
    embedding at one token. At the remaining tokens, the output of the attention changes with the padding and not with
    the token.

    Not blamed: models in which attention reads both (no mask) or only the tokens.

    What to do: `~mask`. In torch's `key_padding_mask`, True hides a position; in the `attn_mask` of
    `scaled_dot_product_attention`, True shows it.

    How to confirm: change one token of a padded sequence and compare the outputs at the other tokens.
    """

    code = "TRN069"
    name = "attention-mask-inverted"
    family = "sequence"
    checks = "attention does not read the padding instead of the tokens"
    trial = Trial("the mask of the padding inverted", model_changes.masks_turned)

    def blames(self, look: Look) -> Iterator[Blame]:
        found = {(p.question, p.step): p for p in look.of(Probed)}
        steps = sorted(step for question, step in found if question == "padding" and ("tokens", step) in found)
        inverted = [s for s in steps if found["padding", s].change > _CHANGES and found["tokens", s].change < _NOTHING]
        if not inverted or len(inverted) < len(steps):
            return
        probed = found["padding", inverted[0]]
        yield self.blame(
            attention_line(probed, masks=True),
            f"the output of {probed.module} at the tokens changes by up to {probed.change:.1%} of its largest value "
            f"with the embeddings of the padding, and not at all with those of another token (step {probed.step})",
            confirm="change one token of a padded sequence, and compare the outputs at the others",
            change=probed.change,
            step=probed.step,
        )
