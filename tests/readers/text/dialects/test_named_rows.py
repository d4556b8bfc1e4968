"""Rows of a step, a name and a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def _rows() -> list[str]:
    rows = []
    for step in range(60):
        if step % 20 == 0:
            rows += [f"{step} val {11 / (1 + step / 10):.4f}", f"{step} hella {0.24 + step / 1000:.4f}"]
        rows.append(f"{step} train {10 / (1 + step / 10):.6f}")
    return rows


def test_each_name_is_a_series(tmp_path: Path) -> None:
    """`train` and `val`, which fall, are the losses."""
    (tmp_path / "log.txt").write_text("\n".join(_rows()) + "\n")
    run = postmortem.load(tmp_path / "log.txt")
    assert run.series("train").index.tolist() == list(range(60))
    assert run.series("val").index.tolist() == [0, 20, 40]
    assert (run.roles["train"], run.roles["val"], run.roles["hella"]) == ("loss", "val_loss", None)


def test_a_listing_is_no_log(tmp_path: Path) -> None:
    """Numbered things that each have a name of their own are not measured again and again."""
    rows = [f"{i} layer{chr(97 + i)} {i / 7:.3f}" for i in range(20)]
    (tmp_path / "log.txt").write_text("\n".join(rows) + "\n")
    assert postmortem.load(tmp_path / "log.txt").frame.empty
