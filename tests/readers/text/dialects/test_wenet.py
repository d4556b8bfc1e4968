"""WeNet's rows of batches and validations."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def log(*, version: int, epochs: int = 4, batches: int = 8) -> str:
    """A training that ends after the validation of its last epoch, without a closing word."""
    head, bar = "2024-05-02 10:{:02d}:{:02d},104 ", "| " if version == 3 else ""
    lines = []
    for epoch in range(epochs):
        lines.append(f"INFO Epoch {epoch} TRAIN info lr 1.0000e-04 rank 0")
        for batch in range(batches):
            loss = 100 * exp(-(epoch * batches + batch) / 8) + 8
            speed = f"steps/sec {3 + batch % 3 / 10:.3f}| " if version == 3 else ""
            row = f"Batch {epoch}/{batch * 100} loss {loss:.6f} loss_att {1.1 * loss:.6f} loss_ctc {0.9 * loss:.6f}"
            lines.append(f"DEBUG TRAIN {bar}{speed}{row} lr 0.00010000 rank 0")
        held_out = f"loss {loss + 3:.6f} history loss {loss + 2:.6f} rank 0"
        lines += [f"DEBUG CV {bar}Batch {epoch}/{batch} {held_out}" for batch in (0, 100)]
        lines.append(f"INFO Epoch {epoch} CV info cv_loss {loss + 1:.6f}")
    return "".join(f"{head.format(i // 60, i % 60)}{line}\n" for i, line in enumerate(lines))


@pytest.mark.parametrize("version", [2, 3])
def test_batches_of_an_epoch_become_steps_of_the_training(tmp_path: Path, version: int) -> None:
    (tmp_path / "train.log").write_text(log(version=version))
    run = postmortem.load(tmp_path)
    loss = run.frame[run.frame.tag == "loss"]
    assert loss.step.tolist() == [800 * epoch + 100 * batch for epoch in range(4) for batch in range(8)]
    assert loss.value.iloc[0] == 108
    held_out = run.frame[run.frame.tag == "cv_loss"]
    assert held_out.step.tolist() == [0, 1, 2, 3], "the row names the epoch, and no step"
    assert "cv_loss" in run.by_epoch
    assert run.roles["cv_loss"] == "val_loss"
    assert ("steps/sec" in set(run.frame.tag)) == (version == 3)


@pytest.mark.parametrize("version", [2, 3])
def test_a_log_that_ends_with_its_last_validation_is_no_silent_death(tmp_path: Path, version: int) -> None:
    (tmp_path / "train.log").write_text(log(version=version))
    [report] = postmortem.scan(tmp_path).runs
    assert (report.verdict, report.findings) == ("healthy", ())
