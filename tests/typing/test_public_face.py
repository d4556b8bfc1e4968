"""What a user of the package gets, as a type checker sees it: ``mypy --strict`` checks this file with the package.

The tests run as well, so that the types are those of the values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

import postmortem
from postmortem import Diagnosis, Event, Finding, PostmortemError, Problem, Report, Run, RunReport

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "nan-log-of-zero"


def test_scan_gives_a_report_of_runs() -> None:
    """`scan` takes a path or several, and each run of the report has its findings, its diagnosis and its problems."""
    report = assert_type(postmortem.scan([SAMPLE, str(SAMPLE)]), Report)
    (run,) = assert_type(report.runs, tuple[RunReport, ...])
    assert assert_type(report[run.name], RunReport) is run
    finding = assert_type(run.findings, tuple[Finding, ...])[0]
    assert assert_type(finding.step, int | None) == 156
    assert assert_type(finding.message, str)
    assert isinstance(assert_type(run.diagnosis, Diagnosis | None), Diagnosis)
    assert assert_type(run.problems, tuple[Problem, ...]) == ()
    assert assert_type(run.events, tuple[Event, ...]) == ()
    assert isinstance(assert_type(run.run, Run | None), Run)
    assert assert_type(str(report), str)


def test_load_gives_frames() -> None:
    """`load` returns the run; its numbers and its events are pandas frames."""
    run = assert_type(postmortem.load(SAMPLE, roles={"train/loss": "loss"}), Run)
    if TYPE_CHECKING:
        assert_type(run.frame, pd.DataFrame)
        assert_type(run.events, pd.DataFrame)
    assert len(run.frame) == assert_type(run.n_points, int)
    assert assert_type(run.roles, dict[str, str | None])["train/loss"] == "loss"


def test_errors_have_one_base() -> None:
    """What a caller catches is PostmortemError."""
    with pytest.raises(PostmortemError, match="nowhere"):
        postmortem.load("nowhere")
