"""A report is a collection of the runs that were scanned."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.report import Report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two runs: "bad", whose loss is NaN from step 60 on, and "good"."""
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        rows = [f"{i},{'nan' if name == 'bad' and i >= 60 else 2 / (1 + i / 10)}\n" for i in range(100)]
        (tmp_path / name / "metrics.csv").write_text("step,loss\n" + "".join(rows))
    return postmortem.scan(tmp_path, keep=False)


def test_length_iteration_and_membership(report: Report) -> None:
    """A report has a length, yields its runs, and knows its runs by object and by name."""
    assert len(report) == 2
    assert list(report) == list(report.runs)
    assert "good" in report
    assert report.runs[0] in report
    assert "nothing" not in report
    assert 0 not in report


def test_a_run_by_name_or_index(report: Report) -> None:
    """The key is a name or an index, negative ones included; an error says what there is."""
    assert report["bad"] is report[0] is report[-2] is report.runs[0]
    assert report[1].name == "good"
    with pytest.raises(IndexError, match="no run at index 2; the report has 2 runs"):
        report[2]
    with pytest.raises(IndexError, match="no run at index -3"):
        report[-3]
    with pytest.raises(KeyError, match="unknown run 'nothing'; available: bad, good"):
        report["nothing"]


def test_copies_are_equal(report: Report) -> None:
    """The report of a run without its numbers is equal to its copy and to what is unpickled; NaN equals nothing."""
    good = report["good"]
    assert copy.deepcopy(good) == pickle.loads(pickle.dumps(good)) == good
    assert repr(pickle.loads(pickle.dumps(report))) == repr(copy.copy(report)) == repr(report)
