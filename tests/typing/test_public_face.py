"""What a user of the package gets, as a type checker sees it: ``mypy --strict`` checks this file with the package.

The tests run as well, so that the types are those of the values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self, assert_type

import pytest

import postmortem
from postmortem import (
    Comparison,
    Culprit,
    Diagnosis,
    Event,
    Finding,
    Health,
    PostmortemError,
    Problem,
    ReplayResult,
    Report,
    Run,
    RunReport,
    TrainStep,
)

if TYPE_CHECKING:
    from types import TracebackType

    import pandas as pd

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "nan-log-of-zero"


def test_scan_gives_a_report_of_runs() -> None:
    """`scan` takes a path or several, and each run of the report has its findings, its diagnosis and its problems."""
    report = assert_type(postmortem.scan([SAMPLE, str(SAMPLE)]), Report)
    (run,) = assert_type(report.runs, tuple[RunReport, ...])
    assert assert_type(report[run.name], RunReport) is run
    assert assert_type(report[0], RunReport) is run
    assert [assert_type(one, RunReport) for one in report] == [run]
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


def test_a_run_is_judged_and_compared() -> None:
    """`judge` and `compare` take runs that were loaded, their reports and paths."""
    run = postmortem.load(SAMPLE)
    report = assert_type(postmortem.judge(run), RunReport)
    assert report.verdict == postmortem.judge(str(SAMPLE)).verdict == "failed"
    assert assert_type(postmortem.compare(run, report), Comparison).first is None
    assert postmortem.compare(SAMPLE, run).first is None


def test_verbs_that_are_packages_have_their_types() -> None:
    """`replay` and `checkpoints` are functions to a type checker, and their modules can be imported from."""
    if TYPE_CHECKING:
        assert_type(postmortem.checkpoints(SAMPLE), list[Health])
        assert_type(postmortem.replay(SAMPLE, step=3).culprit, Culprit)
        assert_type(postmortem.replay(postmortem.load(SAMPLE), device="cpu"), ReplayResult)
        assert_type(postmortem.localize(TrainStep(None, None, None), step=3, fixes=False), Culprit)
        assert_type(postmortem.plugins.Run, type[Run])
    assert callable(postmortem.replay)
    assert callable(postmortem.checkpoints)


def test_errors_have_one_base() -> None:
    """What a caller catches is PostmortemError."""
    with pytest.raises(PostmortemError, match="nowhere"):
        postmortem.load("nowhere")


def test_a_mode_of_a_fix_may_set_itself_up() -> None:
    """A subclass of `StepMode` overrides `__enter__` and `__exit__` with types, and calls the base."""
    pytest.importorskip("torch")
    from postmortem.plugins import StepMode

    class Counting(StepMode):
        depth = 0

        def __enter__(self) -> Self:
            self.depth += 1
            return super().__enter__()

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            self.depth -= 1
            super().__exit__(kind, error, trace)

    mode = Counting()
    with mode as entered:
        assert assert_type(entered, Counting).depth == 1
    assert mode.depth == 0


def test_a_reason_outside_of_the_list_is_an_error_of_types() -> None:
    """Counting a skipped value under free words does not pass mypy; a reason of the list and `other` do."""
    from postmortem.plugins import Reading, Skip

    reading = Reading(source="mine", path="log.mine")
    reading.skipped[Skip.IMAGES] += 1
    reading.skipped.other("pictures of the moon")
    reading.skipped["pictures"] += 1  # type: ignore[index]
    assert assert_type(reading.skipped.total(), int) == 3
