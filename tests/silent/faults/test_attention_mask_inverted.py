"""Padding masks the wrong way round."""

from __future__ import annotations

from postmortem.silent.faults.attention_mask_inverted import AttentionMaskInverted
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.sequence_programs import classifier, language_model

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


HIDES = "scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool() | pad[:, None, :], -1e4)"
BATCH = (
    "ids[torch.arange(LENGTH + 1) >= torch.randint(3, LENGTH, (16, 1))] = 0; attention_mask = ids != 0; "
    "y = ids.clone(); y[{where}] = -100; x, y = ids[:, :-1], y[:, 1:]"
)
WEIGHTED = (
    "ids[torch.arange(LENGTH + 1) >= torch.randint(3, LENGTH, (16, 1))] = 0; x, y = ids[:, :-1], ids[:, 1:]; "
    "weights = (y {sign} 0).float().flatten()"
)
MEAN = '(F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none") * weights).sum() / weights.sum()'


@blamed(AttentionMaskInverted, at="-100")
def labels_of_the_padding_count() -> str:
    return language_model(HIDES, batch=BATCH.format(where="attention_mask"))


@quiet(AttentionMaskInverted)
def labels_of_the_tokens_count() -> str:
    return language_model(HIDES, batch=BATCH.format(where="~attention_mask"))


@quiet(AttentionMaskInverted)
def labels_of_tokens_and_padding_count() -> str:
    return language_model(HIDES, batch=BATCH.format(where="ids == VOCABULARY"))


@blamed(AttentionMaskInverted, at="cross_entropy")
def weights_of_the_padding() -> str:
    return language_model(HIDES, batch=WEIGHTED.format(sign="=="), loss=MEAN)


@quiet(AttentionMaskInverted)
def weights_of_the_tokens() -> str:
    return language_model(HIDES, batch=WEIGHTED.format(sign="!="), loss=MEAN)


@quiet(AttentionMaskInverted, status="not checked")
def what_was_read_is_repeated_at_the_blanks() -> str:
    """Targets lie at the blanks only, and are what was read."""
    batch = "x = ids[:, :-1].clone(); y = x.clone(); x[:, LENGTH // 2:] = 0; y = y.roll(LENGTH // 2, 1)"
    batch += "; x[0, -3:] = x[0, :3]; x[1, -2:] = x[1, :2]; y[x != 0] = -100"
    return language_model("pass", batch=batch)
