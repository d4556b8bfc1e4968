"""Classes one after the other."""

from __future__ import annotations

from postmortem.silent.faults.sorted_data_not_shuffled import SortedDataNotShuffled
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    y = {labels}
    x = torch.randn(400, 4) + y[:, None]
    loader = DataLoader(TensorDataset(x, y), batch_size={batch}{options})
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for xb, yb in {source}:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
SORTED = "torch.arange(5).repeat_interleave(80)"


def loop(labels: str = SORTED, options: str = "", source: str = "loader", batch: int = 16) -> str:
    return LOOP.format(labels=labels, options=options, source=source, batch=batch)


@blamed(SortedDataNotShuffled, at="loader = DataLoader")
def a_loader_without_shuffle() -> str:
    return loop()


@blamed(SortedDataNotShuffled, at="model(xb)")
def slices_in_order() -> str:
    return loop(source="zip(x.split(16), y.split(16))")


@blamed(SortedDataNotShuffled, at="loader = DataLoader")
def a_batch_for_each_class() -> str:
    return loop(batch=40)


@quiet(SortedDataNotShuffled)
def shuffled() -> str:
    return loop(options=", shuffle=True")


@quiet(SortedDataNotShuffled)
def mixed_as_it_is() -> str:
    return loop("torch.randint(0, 5, (400,))")


@quiet(SortedDataNotShuffled)
def a_rare_class() -> str:
    return loop("(torch.rand(400) < 0.03).long()", batch=8)


@quiet(SortedDataNotShuffled)
def real_and_generated_in_turn() -> str:
    """The two kinds of a discriminator's batches."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        d = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(d.parameters(), lr=0.05)
        for step in range(40):
            label = torch.full((16, 1), float(step % 2))
            loss = nn.functional.binary_cross_entropy_with_logits(d(torch.randn(16, 4) + label), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
