"""Values whose name stands in the line above."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def test_a_number_belongs_to_the_name_above_it(tmp_path: Path) -> None:
    """At the epoch in the heading; a number further down has no name."""
    rows = [
        f"Epoch {e}\nTraining loss:\n{2 / e:.5f}\nValidation loss:\n{3 / e:.5f}\nUsed memory:\n\n{e}"
        for e in range(1, 21)
    ]
    (tmp_path / "log.txt").write_text("\n".join(rows) + "\n")
    run = postmortem.load(tmp_path)
    assert dict(run.roles) == {"Training loss": "loss", "Validation loss": "val_loss"}
    assert run.series("Training loss").index.tolist() == list(range(1, 21))
    assert run.series("Validation loss").tolist() == [round(3 / e, 5) for e in range(1, 21)]


def test_two_pairs_of_lines_are_no_style(tmp_path: Path) -> None:
    rows = ["Final loss:", "0.25", "Final accuracy:", "0.75", *(f"step {i} loss {1 / i:.4f}" for i in range(1, 30))]
    (tmp_path / "log.txt").write_text("\n".join(rows) + "\n")
    assert set(postmortem.load(tmp_path).roles) == {"loss"}
