"""A run that stood still."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View
from postmortem.detectors.hang import Hang
from tests.detectors.cases import fires, quiet


@fires(Hang, step=399, ended="hung")
def a_run_that_hung(base):
    return base


@quiet(Hang, ended="completed", readings=[Reading(source="csv", path="r", stopped=1.8e9)])
def a_file_that_was_touched_long_after_the_end(base):
    """A completed run did not hang, whenever its file was last written."""
    return base


def _interrupted(tmp_path: Path, seconds: int, steps: int = 3000, how: str = "received interrupt, shutting down"):
    """The findings of a run of which somebody ended `seconds` of silence after step 460."""
    clock, rows = datetime(2026, 11, 20, 12, 0, 0), []
    for i in range(10, 470, 10):
        clock += timedelta(milliseconds=200 + i % 3 * 40)
        rows.append(f"{clock} INFO step {i}/{steps} loss={1 / i:.5f}\n")
    rows.append(f"{clock + timedelta(seconds=seconds)} INFO {how}\n")
    (tmp_path / "train.log").write_text("".join(rows))
    [run] = postmortem.scan(tmp_path).runs
    return run, [f for f in run.findings if f.name == "hang"]


def test_a_long_silence_before_an_interrupt_may_be_a_hang(tmp_path: Path) -> None:
    run, [found] = _interrupted(tmp_path, 45)
    assert (found.severity, found.step, run.ended) == ("warning", 460, "interrupted")
    assert "it may have hung" in found.message


@pytest.mark.parametrize(("seconds", "steps"), [(8, 3000), (45, 460)])
def test_an_interrupt_soon_after_a_step_or_at_the_end_is_none(tmp_path: Path, seconds: int, steps: int) -> None:
    run, found = _interrupted(tmp_path, seconds, steps)
    assert found == []
    assert run.verdict == "healthy"


def test_a_log_that_hung_does_not_stop_without_a_reason_as_well(tmp_path: Path) -> None:
    """Both would describe one end."""
    run, [found] = _interrupted(tmp_path, 7200, how="heartbeat")
    assert found.severity == "error"
    assert "silent-death" not in {f.name for f in run.findings}


def test_other_series_that_are_logged_in_the_meantime_show_that_it_works() -> None:
    """Two rounds, each with a tag of its own: the first is not silent while the second is trained."""

    def findings(tag: str) -> list[str]:
        builder = PointsBuilder()
        for name, start in (("train/loss-r1", 0), (tag, 4000)):
            builder.extend(name, np.arange(400), np.linspace(2, 1, 400), 1.7e9 + start + 10.0 * np.arange(400), -1)
        points = builder.build()
        segment, restarts = segments(points)
        end = 1.7e9 + 8000
        run = Run(
            name="r",
            path=Path("r"),
            event_list=[],
            problems=[],
            sources=[],
            streams=[Stream("csv", "r", points, segment, restarts)],
            readings=[Reading(source="csv", path="r", stopped=end)],
        )
        return [f.name for f in Hang().detect(View(run))]

    assert findings("train/loss-r2") == []
    assert findings("gpu.0.temp") == ["hang"]  # the machine is watched on while a program hangs


def test_times_without_a_loss_or_another_sign_of_a_training(tmp_path: Path) -> None:
    """Rows with times and values that are no sign of work are judged like others: no failure of the detector."""
    first = datetime(2026, 3, 1, 12)
    rows = (f"{first + timedelta(minutes=i)} queue: waiting={i % 5} nodes={i % 3}\n" for i in range(40))
    (tmp_path / "job.log").write_text("".join(rows))
    (report,) = postmortem.scan(tmp_path / "job.log").runs
    assert not report.problems


def test_a_start_without_steps_at_the_end_of_a_log_of_several(tmp_path: Path) -> None:
    """Days later the program was started once more and logged its settings only: the training did not hang."""
    clock, rows = datetime(2026, 11, 20, 12, 0, 0), []
    for _ in range(3):
        for i in range(1, 60):
            clock += timedelta(seconds=2)
            rows.append(f"{clock} INFO step {i} loss={1 / i:.5f}\n")
    rows.append(f"{clock + timedelta(days=2)} INFO train with device cpu\n")
    (tmp_path / "train.log").write_text("".join(rows))
    [run] = postmortem.scan(tmp_path).runs
    assert [f.severity for f in run.findings if f.name == "hang"] == ["info"]
