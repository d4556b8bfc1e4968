"""A small model of sequences, of which the cases of several faults are made."""

from __future__ import annotations

MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F

    torch.manual_seed(0)
    VOCABULARY, LENGTH, WIDTH = 20, 8, 16


    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x, pad):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.transpose(1, 2) / WIDTH**0.5
            {mask}
            return self.out(scores.softmax(-1) @ v)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, WIDTH{padding})
            {positions}
            self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
            self.head = nn.Linear(WIDTH, {outputs})

        def forward(self, ids):
            x = {embedded}
            x = x + self.attention(self.norm(x), ids == 0)
            return self.head({pooled})


    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(12):
        ids = torch.randint(1, VOCABULARY, (16, LENGTH + 1))
        {batch}
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
TRIANGLE = 'scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))'
TABLE = "self.pos = nn.Embedding(LENGTH, WIDTH)"


def language_model(
    mask: str = TRIANGLE,
    positions: str = TABLE,
    embedded: str = "self.table(ids) + self.pos(torch.arange(ids.shape[1]))",
    batch: str = "x, y = ids[:, :-1], ids[:, 1:]",
    loss: str = "F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
) -> str:
    """Trained to predict the next token."""
    return MODEL.format(
        mask=mask,
        positions=positions,
        embedded=embedded,
        batch=batch,
        loss=loss,
        padding="",
        outputs="VOCABULARY",
        pooled="x",
    )


def classifier(mask: str, padding: str = ", padding_idx=0", embedded: str = "self.table(ids) + self.pos.weight") -> str:
    """Of padded sequences."""
    batch = "ids = ids[:, :-1]; ids[torch.arange(LENGTH) >= torch.randint(2, LENGTH, (16, 1))] = 0; y = ids[:, 0] % 2"
    return MODEL.format(
        mask=mask,
        positions=TABLE,
        embedded=embedded,
        batch=batch,
        loss="F.cross_entropy(model(ids), y)",
        padding=padding,
        outputs="2",
        pooled="(x * (ids != 0)[..., None]).sum(1)",
    )
