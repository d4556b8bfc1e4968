"""Two processes that write into one folder: at the same time, or one after the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tensorboard")

NOW = time.time()
"""The names of the files hold the time of their creation."""


def _write(folder: Path, suffix: str, begin: float, steps: range, nan_from: int = 10**9, rate: float = 0.01) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    for n, step in enumerate(steps):
        loss = float("nan") if step >= nan_from else 2.5 - 0.005 * step
        values = [Summary.Value(tag="train/loss", simple_value=loss), Summary.Value(tag="lr", simple_value=rate)]
        writer.add_event(Event(wall_time=begin + n, step=step, summary=Summary(value=values)))
    writer.close()


def test_two_writers_at_once_are_no_restart(tmp_path: Path) -> None:
    """The numbers of each are kept apart, so that the NaN of one is seen."""
    _write(tmp_path, ".a", NOW, range(200))
    _write(tmp_path, ".b", NOW + 2, range(200), nan_from=90)
    (report,) = postmortem.scan(tmp_path).runs
    assert [(f.name, f.step) for f in report.findings] == [("nan-onset", 90)]
    assert any("at the same time" in note for note in report.notes)


def test_what_a_restart_overwrote_is_told(tmp_path: Path) -> None:
    """The first attempt became NaN; the second, at a lower rate, is well: the lower rate is no fault."""
    _write(tmp_path, ".a", NOW, range(200), nan_from=150)
    _write(tmp_path, ".b", NOW + 1000, range(120, 500), rate=0.004)
    (report,) = postmortem.scan(tmp_path).runs
    assert [(f.name, f.step) for f in report.findings] == [("step-reset", 120)]
    assert "train/loss was non-finite (NaN or Inf) from step 150 on" in report.findings[0].message
