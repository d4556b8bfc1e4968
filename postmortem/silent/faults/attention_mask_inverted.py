from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._sequences import attention_line
from postmortem.silent.source import place_of, source
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Probed, TargetsPadded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_CHANGES = 1e-3
_NOTHING = 1e-5
_STEPS = 3


@fault
class AttentionMaskInverted(BaseFault):
    """The padding mask is inverted: attention reads the padding and hides the tokens, or the loss counts the padding
    and leaves out the tokens.

    How it is found: a copy of the model is rerun twice, once with other embeddings at the padding and once with another
    embedding at one token. At the remaining tokens, the output of the attention changes with the padding and not with
    the token. Of a loss: in each step that is looked at, all targets that count (not `ignore_index`, weight not 0) lie
    at padding and are one class. Padding is where `attention_mask` is 0 and all tokens are the same, or the trailing
    positions with one token, by which the model's embedding or the rows name it.

    Not blamed: models in which attention reads both (no mask) or only the tokens; losses that count tokens as well, and
    targets of several classes at the end of a sequence, as of a model that repeats what it read.

    What to do: `~mask`. In torch's `key_padding_mask`, True hides a position; in the `attn_mask` of
    `scaled_dot_product_attention`, True shows it. Of labels: `labels[attention_mask == 0] = -100`.

    How to confirm: change one token of a padded sequence and compare the outputs at the other tokens. Of a loss: print
    one row of the tokens and of the labels side by side.
    """

    code = "TRN069"
    name = "attention-mask-inverted"
    family = "sequence"
    checks = "attention and loss do not take the padding instead of the tokens"
    trial = Trial("the mask of the padding inverted", model_changes.masks_turned)

    def seen(self, look: Look) -> str:
        return _seen.some(
            [p for p in look.of(Probed) if p.question in ("padding", "tokens")] + look.of(TargetsPadded),
            "padding or attention mask of token sequences",
            "looks at padding or an attention mask",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        yield from self._attention(look)
        yield from self._loss(look)

    def _attention(self, look: Look) -> Iterator[Blame]:
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

    def _loss(self, look: Look) -> Iterator[Blame]:
        seen = look.of(TargetsPadded)
        if len(seen) < _STEPS or not all(t.constant and t.padding == t.counted for t in seen):
            return
        first = seen[0]
        yield self.blame(
            _ignoring(first.at),
            f"in all {len(seen)} losses that were looked at, the targets that count lie at padding and are one class; "
            f"in step {first.step} {first.counted} targets count, and none at the {first.tokens} tokens",
            confirm="print one row of the tokens, the attention mask and the labels side by side",
            losses=len(seen),
            counted=first.counted,
            tokens=first.tokens,
        )


def _ignoring(at: Place | None) -> Place | None:
    """The assignment of -100 to some of what is called labels or targets, if the file of the loss has one."""
    if at is None:
        return None
    tree = source(at.file).tree
    for node in ast.walk(tree) if tree is not None else ():
        masked = isinstance(node, ast.Assign) and any(isinstance(t, ast.Subscript) for t in node.targets)
        if masked and ast.unparse(node.value) == "-100":  # type: ignore[attr-defined]
            return place_of(at.file, node)
    return at
