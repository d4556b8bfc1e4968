from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._sequences import attention_line
from postmortem.silent.weight_facts import Probed, TargetsMatched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_CHANGES = 1e-3


@fault
class CausalMaskMissing(BaseFault):
    """A model trained to predict the next token can see that token: its loss becomes far too good, and it cannot
    generate.

    How it is found: the targets are the input tokens, shifted by one position. A copy of the model is rerun with other
    tokens in the second half of the sequences, and outputs in the first half change. The module named is the first one
    whose output there changes although its input does not.

    Not blamed: models whose targets are not the next tokens (masked language models, classifiers); encoders whose
    tokens are not the predicted ones.

    What to do: `is_causal=True`, or a mask of -inf above the diagonal before the softmax.

    How to confirm: change the last token of an input and compare the outputs at the positions before it.
    """

    code = "TRN068"
    name = "causal-mask-missing"
    family = "sequence"
    checks = "no next-token model sees the tokens that it predicts"

    def seen(self, look: Look) -> str:
        return _seen.of(
            look,
            Probed,
            "model of token sequences",
            "looks at what a model of token sequences sees",
            lambda p: p.question == "future",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        probed = [p for p in look.of(Probed) if p.question == "future"]
        leaks = [p for p in probed if p.change > _CHANGES]
        if not leaks or any(t.shift not in (1, 2) for t in look.of(TargetsMatched)):
            return
        yield self.blame(
            attention_line(leaks[0]),
            f"with other tokens in the second half of the sequences, the output of {leaks[0].module} in the first half "
            f"changes by up to {leaks[0].change:.1%} of its largest value (step {leaks[0].step}); the targets are the "
            "next tokens",
            confirm="change the last token of an input, and compare the outputs at the positions before it",
            change=leaks[0].change,
            step=leaks[0].step,
        )
