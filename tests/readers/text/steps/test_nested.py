"""Two counters in a row: which of them counts the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path


def steps(tmp_path: Path, text: str, tag: str = "loss") -> list[int]:
    """The steps of a tag."""
    path = tmp_path / "train.log"
    path.write_text(text)
    points = read_text(path).points
    found: list[int] = points.step[points.code == points.tags.index(tag)].tolist()
    return found


COUNTED = [200 * i for i in range(20)]


@pytest.mark.parametrize(
    "style",
    [
        "iteration:{outer} step:{inner}/1000 loss:{loss} lr:0.001",
        "Iteration {outer} | Step [{inner}/1000] | loss: {loss}",
        "iter {outer}/4 batch {inner}/1000 loss: {loss}",
        "round {outer}, iteration {inner}/1000 loss: {loss}",
        "iter {outer} [{inner}/1000] loss: {loss}",
    ],
)
def test_the_inner_counter_counts_on_from_pass_to_pass(style: str, tmp_path: Path) -> None:
    rows = "".join(
        style.format(outer=o, inner=i, loss=f"{3 - o / 4 - i / 5000:.4f}") + "\n"
        for o in range(4)
        for i in range(0, 1000, 200)
    )
    assert steps(tmp_path, rows) == COUNTED


def test_a_row_of_the_outer_counter_is_at_the_end_of_its_pass(tmp_path: Path) -> None:
    rows = ""
    for o in range(4):
        rows += "".join(f"iteration:{o} step:{i}/1000 loss:{3 - o / 4 - i / 5000:.4f}\n" for i in range(0, 1000, 200))
        rows += f"iteration:{o} val_loss:{2 - o / 10:.4f}\n"
    assert steps(tmp_path, rows) == COUNTED
    assert steps(tmp_path, rows, "val_loss") == [800, 1800, 2800, 3800]


@pytest.mark.parametrize(
    "style",
    ["step {s} batch {b}/8 loss: {x}", "step {s} batch 64 loss: {x}", "global_step {s} batch {b}/999 loss: {x}"],
)
def test_micro_batches_and_sizes_are_no_passes(style: str, tmp_path: Path) -> None:
    batches = range(8) if "{b}" in style else [0]
    rows = "".join(style.format(s=s, b=b, x=f"{3 - s / 50 + b / 90:.4f}") + "\n" for s in range(30) for b in batches)
    assert steps(tmp_path, rows) == [s for s in range(30) for _ in batches]


@pytest.mark.parametrize("style", ["<{n}> loss: {x}", "({n}) loss {x} acc 0.5", "{n}> loss {x}", "[a] <{n}> loss={x}"])
def test_a_number_in_brackets_before_a_metric_is_the_step(style: str, tmp_path: Path) -> None:
    rows = "".join(style.format(n=n, x=f"{3 - n / 900:.4f}") + "\n" for n in range(330, 700, 10))
    assert steps(tmp_path, rows) == list(range(330, 700, 10))


def test_a_number_in_brackets_in_a_listing_is_no_step(tmp_path: Path) -> None:
    rows = "(0) losses are printed\n(1) loss functions: 3\n" + "".join(f"step {s} loss {s + 1}.5\n" for s in range(5))
    assert steps(tmp_path, rows) == list(range(5))
