"""Labels of other samples."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from postmortem.silent.faults._orders import reordered
from postmortem.silent.faults.labels_misaligned import LabelsMisaligned
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import random
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(1600, 6)
    {labels}
    {prepare}
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, {out}))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for xb, yb in {batches}:
            loss = nn.functional.{loss}(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
CLASSES = "y = (x[:, 0] + x[:, 1] > 0).long() + (x[:, 0] > 0.5).long()"
TOGETHER = "zip(x.split(32), y.split(32))"


def loop(
    prepare: str, labels: str = CLASSES, batches: str = TOGETHER, loss: str = "cross_entropy", out: int = 3
) -> str:
    return LOOP.format(prepare=prepare, labels=labels, batches=batches, loss=loss, out=out)


@blamed(LabelsMisaligned, at="y = y[torch.randperm(1600)]")
def two_permutations() -> str:
    return loop("x = x[torch.randperm(1600)]\n    y = y[torch.randperm(1600)]")


@blamed(LabelsMisaligned, at="np.random.shuffle(b)")
def two_shuffles() -> str:
    arrays = "a, b = x.numpy().copy(), y.numpy().copy()\n    np.random.shuffle(a)\n    np.random.shuffle(b)\n"
    return loop(arrays + "    x, y = torch.from_numpy(a), torch.from_numpy(b)")


@blamed(LabelsMisaligned, at="y = y[:-3]")
def cut_at_different_ends() -> str:
    return loop("x = x[3:]\n    y = y[:-3]")


@blamed(LabelsMisaligned, at="zip(")
def two_loaders_that_shuffle() -> str:
    pairs = "zip(*(DataLoader(t, batch_size=32, shuffle=True) for t in (x, y)))"
    return loop("pass", batches=pairs)


@blamed(LabelsMisaligned, at="y = y[torch.randperm(1600)]")
def of_a_regression() -> str:
    prepare = "x = x[torch.randperm(1600)]\n    y = y[torch.randperm(1600)]"
    return loop(prepare, "y = x[:, :1] * 2 + x[:, 1:2]", loss="mse_loss", out=1)


@blamed(LabelsMisaligned, at="np.random.shuffle(a)")
def the_inputs_alone() -> str:
    arrays = "a, b = x.numpy().copy(), y.numpy()\n    np.random.shuffle(a)\n"
    pairs = "((torch.from_numpy(a[i : i + 32]), torch.from_numpy(b[i : i + 32])) for i in range(0, 1600, 32))"
    return loop(arrays, batches=pairs)


@blamed(LabelsMisaligned, at="x = x[order]")
def the_inputs_alone_by_an_order() -> str:
    return loop("order = torch.randperm(1600)\n    x = x[order]")


@blamed(LabelsMisaligned, at="xb, yb = x[torch")
def rows_that_are_drawn_twice() -> str:
    drawn = "xb, yb = x[torch.randint(1600, (32,))], y[torch.randint(1600, (32,))]"
    return loop("pass", batches="[(x, y)] * 50").replace("loss = nn", f"{drawn}\n            loss = nn")


@blamed(LabelsMisaligned, at="xs = x[order]")
def the_labels_as_they_were() -> str:
    pairs = "zip(xs.split(32), ys.split(32))"
    return loop("order = torch.randperm(1600)\n    xs = x[order]\n    ys = y[:1600]", batches=pairs)


@blamed(LabelsMisaligned, at="y = y[torch.randperm(1600)]")
def of_losses_that_are_divided() -> str:
    """As for gradients that are accumulated; libraries divide by 1 where they are not."""
    prepare = "x = x[torch.randperm(1600)]\n    y = y[torch.randperm(1600)]"
    return loop(prepare).replace("loss.backward()", "(loss / 4 / 1).backward()")


PAIRED = """
    class Rows(torch.utils.data.Dataset):
        def __init__(self, inputs, labels):
            self.inputs, self.labels = inputs, labels
        def __len__(self):
            return len(self.inputs)
        def __getitem__(self, i):
            return {"x": self.inputs[i], "y": self.labels[i]}
    order = torch.randperm(1600)
    train_x = x[order][:1600]
    train_y = y[:1600]
"""


@blamed(LabelsMisaligned, at="train_x = x[order]")
def rows_of_a_dataset() -> str:
    batches = "((b['x'], b['y']) for b in DataLoader(Rows(train_x, train_y), batch_size=32, shuffle=True))"
    return loop(inspect.cleandoc(PAIRED).replace("\n", "\n    "), batches=batches)


COLLATE = """
    def collate(batch):
        labels = torch.stack([label for _, label in batch])
        batch.sort(key=lambda item: float(item[0][5]))
        rows = torch.stack([row for row, _ in batch])
        return rows, labels
"""


@blamed(LabelsMisaligned, at="batch.sort(")
def labels_taken_before_a_batch_is_sorted() -> str:
    batches = "DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, collate_fn=collate)"
    return loop(inspect.cleandoc(COLLATE).replace("\n", "\n    "), batches=batches)


@pytest.mark.parametrize("kept", [True, False])
def test_attributes_of_a_class_that_is_made_later(tmp_path: Path, kept: bool) -> None:
    """Their values are those of the arrays as they are then."""
    rows = "class Rows:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n"
    rows += "    def __getitem__(self, i):\n        return self.x[i], self.y[i]\n"
    made = "x = pad()\ny = cat(x)\norder = randperm(9)\nx = x[order]\n" + ("" if kept else "y = y[order]\n")
    (tmp_path / "train.py").write_text(rows + made + "rows = Rows(x, y)\n")
    assert (reordered(str(tmp_path / "train.py")) is not None) == kept


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            "lengths = [len(t) for t in batch]; batch = sorted(batch); return pad(batch), lengths",
            "takes lengths from batch",
        ),
        ("batch = sorted(batch); lengths = [len(t) for t in batch]; return pad(batch), lengths", None),
        ("longest = max(len(t) for t in batch); batch = sorted(batch); return pad(batch, longest)", None),
        ("y = [t[1] for t in batch]; print(Counter(y)); batch = sorted(batch); return pad(batch)", None),
        ("y = [t[1] for t in batch]; batch = sorted(batch); y = [t[1] for t in batch]; return pad(batch), y", None),
        (
            "x, y = pad(batch), cat(batch); order = x.argsort(); x = x[order]; return x, y",
            "brings x into another order",
        ),
        ("x, y = pad(batch), cat(batch); order = x.argsort(); x, y = x[order], y[order]; return x, y", None),
        ("words = sorted(set(batch)); x = cat([words[i] for i in batch]); y = cat(batch); return x, y", None),
        ("x = pad(batch); x = x[randperm(9)]; y = cat(x); return x, y", None),
        ("x = pad(batch); y = cat(x); x = x[randperm(9)]; return x, y", "brings x into another order"),
        ("x, y = batch; x = x[randperm(9)]; shuffle(y); return x, y", None),
    ],
)
def test_what_the_source_does(tmp_path: Path, lines: str, found: str | None) -> None:
    """Only what is used together and is not brought into the same order; each line of its own."""
    (tmp_path / "train.py").write_text("def collate(batch):\n    " + lines.replace("; ", "\n    ") + "\n")
    told = reordered(str(tmp_path / "train.py"))
    assert (told is not None) == (found is not None), told
    assert found is None or found in told[1]


@quiet(LabelsMisaligned, status="not checked")
def labels_of_permuted_inputs() -> str:
    """The labels, which nothing predicts, are made after the inputs were permuted."""
    late = "order = torch.randperm(1600)\n    x = x[order]\n    y = torch.randint(0, 3, (len(x),))"
    return loop(late, "pass")


@quiet(LabelsMisaligned)
def one_permutation() -> str:
    return loop("order = torch.randperm(1600)\n    x, y = x[order], y[order]")


@quiet(LabelsMisaligned)
def two_shuffles_with_one_seed() -> str:
    return loop(
        "g = torch.Generator\n    x = x[torch.randperm(1600, generator=g().manual_seed(1))]\n"
        "    y = y[torch.randperm(1600, generator=g().manual_seed(1))]"
    )


@quiet(LabelsMisaligned, status="not checked")
def a_target_that_nothing_predicts() -> str:
    return loop("order = torch.randperm(1600)\n    x, y = x[order], y[order]", "y = torch.randint(0, 3, (1600,))")
