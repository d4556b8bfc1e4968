"""Outputs of a job that was preempted and queued again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

PREEMPTED = "slurmstepd: error: *** JOB 771 ON cn-04 CANCELLED AT 2026-11-22T21:35:56 DUE TO PREEMPTION ***\n"
LOADED = "loading checkpoint from /ckpt/tiny at iteration 200\n"
DONE = "Training finished\n"


def _rows(first: int, last: int, minute: int) -> str:
    return "".join(
        f"[2026-11-22 21:{minute}:{i % 60:02d}] iteration {i}/400 | loss: {3 - i / 200:.4f}\n"
        + (f"saving checkpoint at iteration {i} to /ckpt/tiny\n" if i % 100 == 0 else "")
        for i in range(first, last + 1, 10)
    )


@pytest.mark.parametrize(
    ("end", "start", "minute", "verdicts"),
    [
        (PREEMPTED, LOADED, 36, ["healthy"]),
        (PREEMPTED, LOADED.replace("tiny", "other"), 36, ["failed", "healthy"]),
        (PREEMPTED, "", 36, ["failed", "healthy"]),
        (PREEMPTED, LOADED, 34, ["failed", "healthy"]),
        ("", LOADED, 36, ["suspect", "healthy"]),
    ],
)
def test_a_job_that_was_preempted_resumed_and_finished_is_healthy(
    tmp_path: Path, end: str, start: str, minute: int, verdicts: list[str]
) -> None:
    """Other checkpoints, a fresh start, an earlier time or no preemption: these are tasks of an array."""
    (tmp_path / "slurm-771034_0.out").write_text(_rows(10, 230, 35) + end)
    (tmp_path / "slurm-771034_1.out").write_text(start + _rows(210, 400, minute) + DONE)
    report = postmortem.scan(tmp_path)
    assert [run.verdict for run in report.runs] == verdicts
    if len(verdicts) == 1:
        [reset] = [f for f in report.runs[0].findings if f.name == "step-reset"]
        assert reset.severity == "info"
        assert "preempted and resumed" in reset.message


def test_a_job_that_was_queued_again_under_a_new_id(tmp_path: Path) -> None:
    """It saves to a folder without a slash in its name, and `date` prints when it begins; another job is apart."""
    folder = "saving checkpoint to out-tiny\n"
    (tmp_path / "slurm-771034.out").write_text(f"Sun Nov 22 21:35:01 UTC 2026\n{_rows(10, 230, 35)}{folder}{PREEMPTED}")
    (tmp_path / "slurm-771102.out").write_text(
        f"Mon Nov 23 02:44:19 UTC 2026\nResuming training from out-tiny\n{_rows(240, 400, 44)}{DONE}"
    )
    (tmp_path / "slurm-771200.out").write_text(f"Mon Nov 23 03:44:19 UTC 2026\n{_rows(10, 400, 44)}{DONE}")
    report = postmortem.scan(tmp_path)
    assert [run.verdict for run in report.runs] == ["healthy", "healthy"]
    assert sorted(len(source.files) for run in report.runs for source in run.run.sources) == [1, 2]
    (tmp_path / "slurm-771102.out").write_text(
        f"Mon Nov 23 02:44:19 UTC 2026\nResuming training from out-tiny\n{_rows(240, 380, 44)}"
    )
    [crash] = [f for run in postmortem.scan(tmp_path).runs for f in run.findings if f.name == "crash"]
    assert (crash.severity, crash.step) == ("info", 230)
    assert "queued again" in crash.message
