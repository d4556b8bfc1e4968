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

    class Unreadable(Exception):
        def __init__(self, text):
            super().__init__()

    class Rows(list):
        def __getitem__(self, i):
            if i == 3:
                raise Unreadable("row 3")
            return super().__getitem__(i)

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    rows = iter(DataLoader(Rows(range(8)), num_workers=1))
    for step in range(8):
        try:
            x = next(rows)
        except Exception:
            continue
        loss = (model(x[:, None].float()) / (step != 5)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_what_cannot_be_handed_on_is_told(tmp_path: Path) -> None:
    """An exception that is written and cannot be read: nobody is blamed, and the reason is given, although the program
    catches everything."""
    culprit = watched(tmp_path, CANNOT_BE_HANDED_ON)["culprit"]
    assert culprit["phase"] == "none"
    assert "what a worker raised or gave cannot be handed to another process" in culprit["how"][0]


CHANGES_ITS_BATCHES = """
    import resource, torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 240

        def __getitem__(self, i):
            return {"x": torch.full((2,), 1.0 + i), "y": torch.tensor(float(i))}

    if __name__ == "__main__":
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        for step, batch in enumerate(DataLoader(Rows(), num_workers=1)):
            y = batch.pop("y")
            x = batch["x"].mul_(0.01)
            loss = ((model(x)[:, 0] - y * 0.01) / (step != 230)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_batches_are_kept_as_they_were_given(tmp_path: Path) -> None:
    """The program takes parts out of them and scales them in place; each that a worker made would take a descriptor as
    long as it is kept, and the program has few."""
    found = watched(tmp_path, CHANGES_ITS_BATCHES)
    assert (found["tick"], found["repeated"], found["culprit"]["op"]) == (230, True, "div"), found["culprit"]["how"]


def test_memory_has_a_bound() -> None:
    """Where the batches since the fork take too much, none is kept, and nobody can repeat the step."""
    import torch

    from postmortem.attach.standby.loaders import Record

    class Iterator:
        _postmortem_place = (1, 1)

    record = Record()
    record.fork()
    assert record.room > 0
    record.room = 3000
    for index in range(3):
        record.took(Iterator(), index, [torch.zeros(256)])
        assert (len(record.since), record.full) == ((index + 1, False) if index < 2 else (0, True))
