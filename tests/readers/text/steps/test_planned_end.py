"""How a log ends that reaches the length that it planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("epochs", "ended"), [(12, "completed"), (9, "unknown")])
def test_the_last_planned_epoch_is_the_end(tmp_path: Path, epochs: int, ended: str) -> None:
    """Also where nothing says that the training is over; one that stops before is not known to have ended."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"Epoch {e}/12 loss: {2 / e:.4f} val_loss: {3 / e:.4f}\n" for e in range(1, epochs + 1)))
    assert postmortem.load(path).ended == ended


def test_an_error_after_the_last_epoch_is_the_end(tmp_path: Path) -> None:
    """A program that fails after its last epoch did not complete."""
    path = tmp_path / "train.log"
    rows = "".join(f"Epoch {e}/12 loss: {2 / e:.4f}\n" for e in range(1, 13))
    path.write_text(
        rows + 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nValueError: no\n'
    )
    assert postmortem.load(path).ended == "crashed"


def test_an_interrupt_is_told_with_its_step(tmp_path: Path) -> None:
    """Ctrl-C is no failure, but the report says where it ended the run."""
    path = tmp_path / "train.log"
    rows = "".join(f"[Step {i}/100] Loss: {5 / i:.4f}\n" for i in range(1, 13))
    path.write_text(rows + "Main process received SIGINT, exiting\n")
    [report] = postmortem.scan(path).runs
    [finding] = [f for f in report.findings if f.name == "crash"]
    assert (finding.severity, finding.step, report.verdict) == ("info", 12, "healthy")
    assert "interrupted" in finding.message


def test_rows_of_a_buffered_trainer_log_are_evenly_spaced(tmp_path: Path) -> None:
    """All rows are written at once, below bars of one state, so their rounded epochs give their steps."""
    path = tmp_path / "train.log"
    bars = "".join(f"\r{n / 40:3.0f}%|# | {n}/4000 [00:{n % 60:02d}<30:00,  2.0it/s]" for n in range(1, 1010))
    rows = "".join(
        f"{{'loss': {3 / k:.4f}, 'learning_rate': 0.0002, 'epoch': {k * 25 / 2000:.2f}}}\n" for k in range(1, 41)
    )
    path.write_text(bars + "\n" + rows)
    assert postmortem.load(path).series("loss").index.tolist() == [25 * k for k in range(1, 41)]
