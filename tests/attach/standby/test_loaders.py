"""What DataLoaders with workers did between the sleeping copy and the fault is done again in its children."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.attach.standby.test_shared import watched

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

EVALUATES = """
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

    class Rows(Dataset):
        def __init__(self, n, flaw=-1):
            self.n, self.flaw = n, flaw

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            if i == self.flaw:
                raise KeyError(i)
            return torch.full((2,), 1.0 + i)

    class Stream(IterableDataset):
        def __iter__(self):
            me = get_worker_info()
            yield from (torch.full((2,), float(i)) for i in range(me.id, 7, me.num_workers))

    def evaluate():
        with torch.no_grad():
            seen = sum(float(model(x).sum()) for x in held_out) + sum(float(x.sum()) for x in streamed)
            assert not list(none)
            some = iter(flawed)  # left before its end
            for _ in range(5):
                try:
                    seen += float(next(some).sum())
                except KeyError:
                    seen += 1000
        return seen * 1e-4

    if __name__ == "__main__":
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        train = DataLoader(Rows(10), batch_size=2, num_workers=1, shuffle=True, persistent_workers=True)
        held_out = DataLoader(Rows(6), batch_size=2, num_workers=1, persistent_workers=True)
        streamed = DataLoader(Stream(), batch_size=2, num_workers=2)
        none, flawed = DataLoader(Rows(0), num_workers=1), DataLoader(Rows(7, flaw=3), num_workers=1)
        step = 0
        for epoch in range(3):
            for x in train:
                loss = (model(x) / (step != 6)).sum() * (evaluate() if step % 5 == 1 else 1.0)  # here
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
            evaluate()
"""


def test_evaluations_are_repeated(tmp_path: Path) -> None:
    """The ends of iterations, several of one persistent loader, those within another one, those left before their end,
    streams, what has no batch at all, and an item that cannot be read: the losses are the same, bit for bit."""
    found = watched(tmp_path, EVALUATES)
    culprit = found["culprit"]
    assert (found["tick"], found["repeated"], culprit["op"]) == (6, True, "div"), culprit["how"]
    assert "# here" in (tmp_path / "train.py").read_text().splitlines()[culprit["line"] - 1]


CANNOT_BE_HANDED_ON = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def lazily(rows):
        return torch.tensor(rows)

    for step, x in enumerate(DataLoader(range(8), num_workers=1)):
        x.later = lambda: x  # no pickle of it
        try:
            loss = (model(x[:, None].float()) / (step != 5)).sum()
        except Exception:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_what_cannot_be_handed_on_is_told(tmp_path: Path) -> None:
    """A batch with something in it that has no pickle: nobody is blamed, and the reason is given."""
    culprit = watched(tmp_path, CANNOT_BE_HANDED_ON)["culprit"]
    assert culprit["phase"] == "none"
    assert "a batch that cannot be handed to another process" in culprit["how"][0]
