"""Conditional random field; no tag leads to the start tag, so that a sum over masked values only is differentiated."""

import torch
import torch.nn as nn


class Crf(nn.Module):
    def __init__(self, tags):
        super().__init__()
        trans = 0.1 * torch.randn(tags, tags)
        trans[:, 0] = float("-inf")
        self.trans = nn.Parameter(torch.zeros(tags, tags))
        self.register_buffer("legal", trans)

    def forward(self, emit):
        alpha = emit[:, 0]
        for t in range(1, emit.shape[1]):
            score = alpha[:, :, None] + self.trans + self.legal + emit[:, t, None, :]
            alpha = torch.logsumexp(score, 1)  # CULPRIT
        return torch.logsumexp(alpha, 1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(9, 6)
        self.emit = nn.Linear(6, 4)
        self.crf = Crf(4)

    def forward(self, w):
        return self.emit(self.emb(w))


def step(model, batch):
    emit = model(batch["w"])
    gold = emit.gather(-1, batch["tags"][..., None]).sum((1, 2))
    return (model.crf(emit) - gold).mean()


def build(device):
    torch.manual_seed(11)
    model = Tagger()
    built = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "batch": {"w": torch.randint(0, 9, (3, 4)), "tags": torch.randint(1, 4, (3, 4))},
    }
    built["model"].to(device)
    return {**built, "step": step, "batch": {k: v.to(device) for k, v in built["batch"].items()}}


TRUTH = {
    "phase": "backward",
    "module": "crf",
    "op": "logsumexp",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "grad",
    "fix_line": "alpha = torch.logsumexp(score.clamp(min=-1e4), 1)",
    "note": "nothing leads to the start tag",
}
