"""Rows of MXNet, and the lists of VITS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postmortem.core.roles import role_of
from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "place", ["Epoch[{e}] Batch [{a}-{b}]\t", "Epoch[{e}] Batch [{b}]\t", "[Epoch {e}][Batch {b}], "]
)
def test_batches_of_epochs(tmp_path: Path, place: str) -> None:
    """The batch is the position in the epoch, a range of batches ends at it, and the unit tells what the speed is."""
    rows = []
    for e in range(3):
        for b in range(20, 101, 20):
            where = place.format(e=e, a=b - 20, b=b)
            rows.append(
                f"INFO:root:{where}Speed: 2011.25 samples/sec\taccuracy=0.{e}{b // 20}\tce={3 - e - b / 200:.3f}"
            )
        rows.append(f"INFO:root:Epoch[{e}] Validation-accuracy=0.{e}5")
    log = tmp_path / "train.log"
    log.write_text("\n".join(rows) + "\n")
    points = read_text(log).points
    assert points.step[points.code == points.tags.index("ce")].tolist() == list(range(20, 301, 20))
    speed = next(tag for tag in points.tags if tag.startswith("Speed"))
    assert role_of(speed) == "throughput"
    assert (points.code == points.tags.index("Validation-accuracy")).sum() == 3


def test_a_list_of_losses_below_the_epoch(tmp_path: Path) -> None:
    """The last two numbers are the step and the learning rate."""
    rows = []
    for step in range(0, 1000, 100):
        rows.append(
            f"2026-01-02 10:11:{step // 100:02d},123\tvoice\tINFO\tTrain Epoch: {step // 400 + 1} [{step // 10}%]"
        )
        rows.append(
            f"2026-01-02 10:11:{step // 100:02d},124\tvoice\tINFO\t[2.5, {9 - step / 200}, nan, {step}, 0.0002]"
        )
    log = tmp_path / "train.log"
    log.write_text("\n".join([*rows, "", "Saved.", "[1.5, 2.5, 300, 0.1]"]) + "\n")
    points = read_text(log).points
    second = points.code == points.tags.index("loss 2")
    assert points.step[second].tolist() == list(range(0, 1000, 100))
    assert points.value[second].tolist() == [9 - step / 200 for step in range(0, 1000, 100)]
    assert points.tags == ["loss 1", "loss 2", "loss 3", "learning rate"]
