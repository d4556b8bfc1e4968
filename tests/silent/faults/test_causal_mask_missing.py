"""Next-token models that see the next token."""

from __future__ import annotations

from postmortem.silent.faults.causal_mask_missing import CausalMaskMissing
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.sequence_programs import language_model


@blamed(CausalMaskMissing, at="softmax")
def no_mask() -> str:
    return language_model(mask="pass")


@blamed(CausalMaskMissing, at="self.attention(")
def an_encoder_of_torch_without_a_mask() -> str:
    source = language_model().replace("Attention()", "nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)")
    return source.replace("self.attention(self.norm(x), ids == 0)", "self.attention(self.norm(x))")


@quiet(CausalMaskMissing)
def masked() -> str:
    return language_model()


@quiet(CausalMaskMissing)
def masked_by_torch() -> str:
    source = language_model().replace("Attention()", "nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)")
    mask = "self.attention(self.norm(x), nn.Transformer.generate_square_subsequent_mask(x.shape[1]))"
    return source.replace("self.attention(self.norm(x), ids == 0)", mask)


@quiet(CausalMaskMissing, status="not checked")
def a_masked_language_model() -> str:
    """It is to see both sides, and its targets are the tokens themselves."""
    batch = "y = ids[:, :-1].clone(); x = y.clone(); x[torch.rand(x.shape) < 0.15] = 0"
    return language_model(mask="pass", batch=batch)


@quiet(CausalMaskMissing)
def the_hooks_of_the_program_run_as_often_as_ever() -> str:
    hook = "model = Net()\n    seen = []\n    model.attention.register_forward_hook(lambda *_: seen.append(1))"
    return language_model().replace("model = Net()", hook) + "\n    assert len(seen) == 12, seen\n"


@quiet(CausalMaskMissing)
def a_recurrent_model() -> str:
    source = language_model().replace("Attention()", "nn.GRU(WIDTH, WIDTH, batch_first=True)")
    return source.replace("self.attention(self.norm(x), ids == 0)", "self.attention(self.norm(x))[0]")
