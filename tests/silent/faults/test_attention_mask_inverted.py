"""Padding masks the wrong way round."""

from __future__ import annotations

from postmortem.silent.faults.attention_mask_inverted import AttentionMaskInverted
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.sequence_programs import classifier

HIDDEN = 'scores = scores.masked_fill(pad[:, None, :], float("-inf"))'
SHOWN = 'scores = scores.masked_fill(~pad[:, None, :], float("-inf"))'


@blamed(AttentionMaskInverted, at="masked_fill")
def tokens_are_hidden() -> str:
    return classifier(SHOWN)


@blamed(AttentionMaskInverted, at="masked_fill")
def padding_that_no_table_names() -> str:
    return classifier(SHOWN, padding="")


@blamed(AttentionMaskInverted, at="src_key_padding_mask")
def an_encoder_of_torch() -> str:
    source = classifier("pass").replace("Attention()", "nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)")
    return source.replace("self.norm(x), ids == 0", "self.norm(x), src_key_padding_mask=ids != 0")


@quiet(AttentionMaskInverted)
def padding_is_hidden() -> str:
    return classifier(HIDDEN)


@quiet(AttentionMaskInverted)
def nothing_is_hidden() -> str:
    return classifier("pass")


@quiet(AttentionMaskInverted)
def an_encoder_with_its_mask() -> str:
    source = classifier("pass").replace("Attention()", "nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)")
    return source.replace("self.norm(x), ids == 0", "self.norm(x), src_key_padding_mask=ids == 0")
