"""Judging a run that was read: an answer, and nothing written into the run."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import postmortem
from postmortem import api, judging
from postmortem.checkpoints.of_run import inspect_run
from postmortem.core.points import Points
from postmortem.core.report import RESUMED
from postmortem.core.run import Run
from postmortem.detectors import DETECTORS


@pytest.fixture
def failed_run(tmp_path: Path) -> Path:
    """A run whose loss is NaN from step 60 on, with a checkpoint every 20 steps, non-finite from 60 on."""
    torch = pytest.importorskip("torch")
    rows = [f"{i},{math.nan if i >= 60 else 2 / (1 + i / 10)}\n" for i in range(100)]
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(rows))
    for step in range(20, 100, 20):
        torch.save({"model": {"w": torch.full((3,), math.nan if step >= 60 else 1.0)}}, tmp_path / f"step_{step}.pt")
    return tmp_path


def snapshot(run: Run) -> dict[str, Any]:
    return {f.name: copy.deepcopy(getattr(run, f.name)) for f in fields(run)}


def same(a: Any, b: Any) -> bool:
    """Equal in depth, arrays by their values."""
    if isinstance(a, Points):
        return all(
            same(getattr(a, name), getattr(b, name)) for name in ("tags", "code", "step", "value", "wall_time", "rank")
        )
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if callable(a):  # how to read the files again
        return type(a) is type(b)
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


def test_judging_leaves_the_run_unchanged(failed_run: Path) -> None:
    """judge, with weights looked into, and the displays of a run change nothing in it."""
    run = postmortem.load(failed_run)
    before = snapshot(run)
    report = api.judge(run, look_into_checkpoints=True)
    assert [c.finite for c in report.checkpoints] == [True, True, False, False]
    run._repr_html_()
    after = snapshot(run)
    assert [name for name in before if not same(before[name], after[name])] == []


def test_judging_what_was_read_opens_no_file(failed_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """judging.judge looks at the run alone: checkpoints count with what the caller learnt of them, or not at all."""
    run = postmortem.load(failed_run)
    inspected = inspect_run(run.checkpoints, 60, 99, every=False)
    monkeypatch.setattr("postmortem.checkpoints.health.health", None)
    monkeypatch.setattr("builtins.open", None)
    monkeypatch.setattr(Path, "open", None)
    report = judging.judge(run, inspected=inspected)
    assert [c.finite for c in report.checkpoints] == [None, True, False, False]
    assert report.diagnosis is not None
    assert report.diagnosis.last_good_checkpoint == str(failed_run / "step_40.pt")
    assert {c.finite for c in judging.judge(run).checkpoints} == {None}


def test_showing_a_run_judges_nothing(failed_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that shows a run shows how it was read: no detector runs, no checkpoint is opened."""
    run = postmortem.load(failed_run)
    for name in ("checkpoints.health.health", "checkpoints.file_map.map_files", "api.judge"):
        monkeypatch.setattr(f"postmortem.{name}", None)
    assert "checkpoints:" in run._repr_html_()


def test_each_detector_runs_once(failed_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a failed run, whose checkpoints are opened between the detectors of the log and those of weights."""
    calls: Counter[str] = Counter()
    for cls in DETECTORS:

        def detect(self: Any, view: Any, inner: Any = cls.detect) -> Any:
            calls[self.code] += 1
            return inner(self, view)

        monkeypatch.setattr(cls, "detect", detect)
    (run,) = postmortem.scan(failed_run).runs
    assert run.verdict == "failed"
    assert any(f.name == "checkpoint-nonfinite" for f in run.findings)
    assert calls == dict.fromkeys((d.code for d in DETECTORS), 1)


def test_a_detector_that_fails_is_a_problem_of_the_report(failed_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of a detector costs what it finds; the report says so once, the run keeps its own problems."""

    def detect(self: Any, view: Any) -> Any:
        raise KeyError("missing")

    monkeypatch.setattr(next(d for d in DETECTORS if d.name == "loss-spike"), "detect", detect)
    run = postmortem.load(failed_run)
    report = api.judge(run)
    (problem,) = report.problems
    assert "the detector failed: KeyError: 'missing'" in problem.what
    assert run.problems == []


def test_a_run_cannot_be_assigned_to(failed_run: Path) -> None:
    """A run is what was read: its attributes cannot be replaced."""
    run = postmortem.load(failed_run)
    with pytest.raises(AttributeError):
        run.ended = "completed"  # type: ignore[misc]


@pytest.mark.parametrize("saved", ["weights", "optimizer", "beside"])
def test_a_resume_from_a_file_without_an_optimizer_is_told(tmp_path: Path, saved: str) -> None:
    """Where the log names that file; not where the optimizer is in it or beside it."""
    torch = pytest.importorskip("torch")
    rows = "".join(f"step={i} loss={1 / (1 + i):.4f}\n" for i in range(30, 60))
    (tmp_path / "run.out").write_text("=> resumed from last.pt at step 30\n" + rows)
    state = {"optimizer": {"state": {}, "param_groups": []}} if saved == "optimizer" else {}
    torch.save({"model": {"w": torch.ones(3)}, "step": 60, **state}, tmp_path / "last.pt")
    if saved == "beside":
        torch.save({"state": {}}, tmp_path / "optim.pt")
    [run] = postmortem.scan(tmp_path).runs
    assert any(note.startswith(RESUMED) for note in run.notes) == (saved == "weights")
