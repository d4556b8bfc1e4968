"""Bars of a training and of its evaluation that no word tells apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import postmortem
from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path


def series(path: Path, tag: str) -> list[tuple[int, float]]:
    """The steps and values of a tag."""
    points = read_text(path).points
    if tag not in points.tags:
        return []
    mine = points.code == points.tags.index(tag)
    return list(zip(points.step[mine].tolist(), points.value[mine].tolist(), strict=True))


def bar(n: int, total: int, loss: float, *, back: bool) -> str:
    """One state of a bar; with `back` the cursor goes back to print the counter in the middle."""
    done = "=" * (10 * n // total)
    counter = "\b" * 20 + f" {n}/{total} " if back else f"  {n}/{total}"
    return f" [{done:.<10}]  Step: 41ms | Loss: {loss:.3f} | Acc: {90 - 20 * loss:.3f}%{counter}"


def epochs(count: int, states: tuple[list[int], list[int]], *, back: bool = False, header: str = "Epoch: {}") -> str:
    """A log of epochs with a pass of 20 batches and one of 4, of which these states are printed."""
    text = ""
    for e in range(count):
        text += "\n" + header.format(e) + "\n"
        for printed, total, more in ((states[0], 20, 0.0), (states[1], 4, 0.5)):
            text += "\r".join(bar(n, total, 2 / (e + 1) + more, back=back) for n in printed) + "\n"
    return text


@pytest.mark.parametrize("back", [False, True])
def test_the_shorter_pass_of_each_epoch_is_the_evaluation(tmp_path: Path, back: bool) -> None:
    path = tmp_path / "train.log"
    path.write_text(epochs(6, (list(range(1, 21)), list(range(1, 5))), back=back))
    assert series(path, "Loss") == [(20 * e + n, round(2 / (e + 1), 3)) for e in range(6) for n in range(1, 21)]
    assert series(path, "val Loss") == [(20 * (e + 1), round(2 / (e + 1) + 0.5, 3)) for e in range(6)]
    [run] = postmortem.scan(path).runs
    assert run.verdict == "healthy"


def test_passes_of_which_only_the_end_is_printed_are_placed_by_epoch(tmp_path: Path) -> None:
    """Also where two passes have equal values: the numbers are not those of the same data."""
    path = tmp_path / "nohup.out"
    path.write_text(epochs(6, ([20], [4]), header="Epoch: {}  lr=0.01").replace("Loss: 0.333", "Loss: 0.833"))
    assert [s for s, _ in series(path, "Loss")] == [s for s, _ in series(path, "val Loss")] == list(range(6))
    assert series(path, "Loss")[-1] == series(path, "val Loss")[-1]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(epochs(2, ([20], [4])), id="too few"),
        pytest.param(epochs(6, ([20], [4])).replace("4/4", "40/40"), id="the second is longer"),
        pytest.param(epochs(6, (list(range(1, 16)), [4])), id="the first does not end"),
        pytest.param(
            "".join(f"Epoch: {e}\n{bar(n, n, 1.0, back=False)}\n" for e in range(12) for n in (20 if e % 2 else 4,)),
            id="an epoch each",
        ),
    ],
)
def test_other_counters_are_no_second_passes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    assert not series(path, "val Loss")


def test_an_evaluation_with_names_of_its_own_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    rows = epochs(6, ([20], [4])).splitlines()
    path.write_text("\n".join(r.replace("Loss", "val_loss") if "4/4" in r else r for r in rows) + "\n")
    assert len(series(path, "val_loss")) == len(series(path, "Loss")) == 6
