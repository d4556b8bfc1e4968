"""The best round, which programs of gradient boosting print again when they stop."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem

ROWS = [f"[{i}]\ttrain's rmse: {1 / i + 0.5:.5f}\tvalid's rmse: {1 / i + 0.6:.5f}" for i in range(10, 120, 10)]
BEST = "[85]\ttrain's rmse: 0.51176\tvalid's rmse: 0.61100"


@pytest.mark.parametrize(
    "head",
    [
        "Early stopping, best iteration is:",
        "Did not meet early stopping. Best iteration is:",
        "Stopping. Best iteration:",
        "2026-11-20 12:00:01,104 - INFO - Early stopping, best iteration is:",
    ],
)
def test_the_best_round_at_the_end_is_no_step_back(tmp_path: Path, head: str) -> None:
    prefix = head.partition("Early")[0] if head.startswith("2026") else ""
    rows = [prefix + row for row in ROWS]
    (tmp_path / "x.log").write_text("\n".join([*rows, head, prefix + BEST, "saved model.txt"]) + "\n")
    run = postmortem.load(tmp_path / "x.log")
    train = run.frame[run.frame.tag == "train's rmse"]
    assert train.step.tolist() == list(range(10, 120, 10))
    (diagnosed,) = postmortem.scan(tmp_path).runs
    assert "step-reset" not in {finding.kind for finding in diagnosed.findings}


def test_only_the_row_below_the_sentence_is_left_out(tmp_path: Path) -> None:
    """A second model (another fold) begins again below the best round of the first."""
    text = "\n".join([*ROWS, "Early stopping, best iteration is:", BEST, *ROWS]) + "\n"
    (tmp_path / "x.log").write_text(text)
    assert (postmortem.load(tmp_path / "x.log").frame.tag == "train's rmse").sum() == 2 * len(ROWS)
