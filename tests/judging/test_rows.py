"""Runs whose log names no step: rows are called rows, and no command names one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import postmortem
from postmortem.core.model import json_value

EPOCHS = [0.05 * (i + 1) for i in range(60)]


def scan(folder: Path, text: str, name: str = "metrics.csv") -> postmortem.RunReport:
    (folder / name).write_text(text)
    (report,) = postmortem.scan(folder).runs
    return report


def table(loss_of_32: str = "nan") -> str:
    losses = [f"{2.2 - 0.02 * i + 0.01 * (i % 3):.4f}" if i < 32 else loss_of_32 for i in range(60)]
    return "epoch,loss\n" + "".join(f"{e:.2f},{loss}\n" for e, loss in zip(EPOCHS, losses, strict=True))


def test_a_row_is_no_step(tmp_path: Path) -> None:
    """A finding says row and epoch, has no step, and no command names the row."""
    report = scan(tmp_path, table())
    finding = report.findings[0]
    assert (finding.name, finding.step, finding.end_step) == ("nan-onset", None, None)
    assert (finding.evidence["row"], finding.evidence["epoch"]) == (32, 1.65)
    assert "row 32 (epoch 1.65)" in finding.message
    story = report.diagnosis
    assert story is not None
    assert story.last_good_step is None
    texts = [story.summary, *story.evidence_for, *story.evidence_against, *story.disprove, *story.next]
    assert not [text for text in texts if "--step" in text or "step 3" in text]
    assert any("row 31 (epoch 1.6)" in text for text in texts)


def test_formats_name_no_step(tmp_path: Path) -> None:
    """Nothing that a reporter prints calls a row a step."""
    scan(tmp_path, table())
    report = postmortem.scan(tmp_path)
    text = str(report)
    assert "no steps" in text
    assert "row 32 (epoch 1.65)" in text
    assert "step 3" not in text
    assert (report.runs[0].first_step, report.runs[0].last_step) == (None, None)
    assert all(a.at_step is None and a.before_step is None for a in report.runs[0].around)
    assert json_value(report.runs[0].around[0].at) == "nan"


def test_rows_without_an_epoch(tmp_path: Path) -> None:
    """Without an epoch the row stands alone; printed text is worded like a table."""
    lines = [f"train loss: {2.2 - 0.02 * i + 0.01 * (i % 3):.4f}" if i < 32 else "train loss: nan" for i in range(60)]
    report = scan(tmp_path, "\n".join(lines) + "\n", "train.log")
    assert "at row 32;" in report.findings[0].message


def test_the_last_word_of_a_sentence(tmp_path: Path) -> None:
    """A row number before a full stop is no step either."""
    losses = [0.2 + 0.001 * (i % 3) for i in range(40)] + [3.8, 3.5, *np.geomspace(3, 0.21, 60)]
    report = scan(tmp_path, "".join(f"train loss: {x:.4f}\n" for x in losses), "train.log")
    assert report.diagnosis is not None
    assert "row 4" in report.diagnosis.summary
    assert "step" not in report.diagnosis.summary


def test_steps_stay_steps(tmp_path: Path) -> None:
    """Where the log names steps, nothing is reworded."""
    losses = [f"{2.2 - 0.02 * i + 0.01 * (i % 3):.4f}" if i < 32 else "nan" for i in range(60)]
    report = scan(tmp_path, "step,loss\n" + "".join(f"{i},{loss}\n" for i, loss in enumerate(losses)))
    assert report.findings[0].step == 32
    assert "at step 32" in report.findings[0].message
    assert postmortem.load(tmp_path).step_axis == "step"


def test_a_crash_after_rows_has_no_last_good_step(tmp_path: Path) -> None:
    """A traceback names no step: the row before it is no last good step."""
    lines = [f"train loss: {2.2 - 0.02 * i + 0.01 * (i % 3):.4f}" for i in range(40)]
    crash = (
        'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    x[9]\nIndexError: out of range\n'
    )
    report = scan(tmp_path, "\n".join(lines) + "\n" + crash, "train.log")
    assert report.verdict == "failed"
    assert report.diagnosis is not None
    assert report.diagnosis.last_good_step is None
