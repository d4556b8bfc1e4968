"""NaN that a program reports and handles: a remark, unless it becomes more."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import postmortem


def _found(tmp_path: Path, rows: list[str]) -> tuple[str, list[tuple[str, str]]]:
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    (run,) = postmortem.scan(tmp_path).runs
    return run.verdict, [(f.severity, f.message) for f in run.findings if f.name == "nan-onset"]


@pytest.mark.parametrize(("every", "verdict"), [("evenly", "healthy"), ("more and more", "suspect")])
def test_skipped_steps_that_become_more(tmp_path: Path, every: str, verdict: str) -> None:
    """Sixty of two thousand steps are few; half of them in the last quarter show where it goes."""
    when = range(400, 2000, 27) if every == "evenly" else {int(400 + 1600 * (k / 60) ** 0.3) for k in range(60)}
    skipped = set(when)
    rows = [
        f"step {i}: NaN loss detected, skipping batch" if i in skipped else f"step {i} loss {2 / (1 + i / 200):.4f}"
        for i in range(2000)
    ]
    told, found = _found(tmp_path, rows)
    assert told == verdict
    assert [severity for severity, _ in found] == ["info" if verdict == "healthy" else "warning"]
    assert ("they become more" in found[0][1]) == (verdict == "suspect")


def test_a_value_that_was_replaced(tmp_path: Path) -> None:
    """It is told with its step; what a table of data does with its gaps is not."""
    rows = [f"step {i} loss {2 * math.exp(-i / 90):.4f} grad_norm {1 + i % 7 / 10:.3f}" for i in range(300)]
    rows[40] = "step 40 loss 1.2823 grad_norm 0.000 (replaced nan by 0)"
    rows.insert(0, "Replaced 12 NaN values with 0 in 3 columns")
    told, found = _found(tmp_path, rows)
    assert told == "healthy"
    assert len(found) == 1
    assert found[0][0] == "info"
    assert "replaced once, as line 42 of train.log reports" in found[0][1]
