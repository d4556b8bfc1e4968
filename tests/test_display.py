"""How results are displayed: one line as repr, the text of the command line with `print`, HTML in a notebook."""

from __future__ import annotations

import copy
import pickle
import re
from html import escape
from typing import TYPE_CHECKING

import pytest

import postmortem as pm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    Command = Callable[..., Any]


def shows(thing: object, expected: str) -> None:
    """`print` shows `expected`, a notebook the same without scripts, and `repr` is one line."""
    assert str(thing) == expected.rstrip("\n")
    assert f"<pre>{escape(str(thing))}</pre>" in thing._repr_html_()  # type: ignore[attr-defined]
    assert repr(thing).startswith(f"<{type(thing).__name__}")
    assert "\n" not in repr(thing)
    assert len(repr(thing)) < 400


def test_a_run_shows_how_it_was_read(sample_runs: Path, postmortem: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run prints as `postmortem show` prints it; it is not judged, and no checkpoint is opened."""
    monkeypatch.setenv("COLUMNS", "100")
    run = sample_runs / "nan-log-of-zero"
    loaded = pm.load(run)
    shows(loaded, postmortem("show", run).out)
    assert "nan-onset" not in loaded._repr_html_()


def test_a_comparison(sample_runs: Path, postmortem: Command) -> None:
    """A comparison prints as `postmortem compare` prints it."""
    a, b = sample_runs / "restart", sample_runs / "killed"
    found = pm.compare(a, b)
    shows(found, postmortem("compare", a, b).out)
    assert "first differs from restart at step 0" in repr(found)
    assert copy.copy(found) == pickle.loads(pickle.dumps(found)) == found


def test_health_of_checkpoints(sample_runs: Path, postmortem: Command) -> None:
    """Each checkpoint prints its part of what `postmortem checkpoints` prints, with the whole path."""
    pytest.importorskip("torch")
    run = sample_runs / "nan-log-of-zero"
    found = pm.checkpoints(run)
    printed = "\n".join(str(health).removeprefix(f"{run}/") for health in found)
    assert printed == postmortem("checkpoints", run).out.partition("\nlast good: ")[0]
    assert "step 19, 24 tensors, finite" in repr(found[0])
    for health in found[:2]:
        shows(health, str(health))
        assert copy.copy(health) == pickle.loads(pickle.dumps(health)) == health


def test_a_replay_and_its_culprit(sample_runs: Path, postmortem: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a replay prints as `postmortem replay` prints it; its culprit prints the part about the culprit."""
    pytest.importorskip("torch")
    monkeypatch.setenv("COLUMNS", "100")
    run = sample_runs / "nan-log-of-zero"
    result = pm.replay(run)
    printed = postmortem("replay", run).out
    shows(result, re.sub(r"\(\d+\.\d(\s+)s\)", rf"({result.seconds:.1f}\1s)", printed))  # the path may wrap the line
    shows(result.culprit, str(result.culprit))
    established, _, how = str(result.culprit).partition("\n\nHow this was established:\n")
    assert established.startswith("Culprit: log(0) at step 156, in sample 30 of the batch: 16 of the 512 values")
    assert established in str(result)
    assert "reran steps 140 to 156" in how
    assert repr(result.culprit) == "<Culprit forward-op at step 156: phase forward, operator log, train.py:33>"
    assert repr(result.culprit) in repr(result)
    for thing in (result, result.culprit):
        assert copy.copy(thing) == pickle.loads(pickle.dumps(thing)) == thing


def test_html_is_escaped() -> None:
    """Text of a log cannot become markup, nor a control sequence of the terminal."""
    found = pm.Comparison(a="<b>\x1b[31m", b="b", partings=())
    assert "<b>" not in found._repr_html_()
    assert "\x1b" not in str(found) + repr(found)


def test_a_notebook_shows_the_curves_of_the_page(sample_runs: Path) -> None:
    """A judged run, a run and a report show loss, gradient norm and rate over one step axis, without a script."""
    report = pm.scan([sample_runs / "nan-log-of-zero", sample_runs / "restart"])
    one = report["nan-log-of-zero"]._repr_html_()
    for shown in ("loss", "gradient norm", "learning rate", "step 156", "<title>not finite</title>"):
        assert f"{shown}" in one
    assert one.count("<svg") == 1
    assert report._repr_html_().count("<svg") == 2
    assert "<svg" in pm.load(sample_runs / "restart")._repr_html_()
    assert "<script" not in one
    assert report[0].drawing is None


def test_a_run_as_wide_tables(sample_runs: Path) -> None:
    """`pivot` and `series` have each surviving step once; an unknown tag is named with those there are."""
    run = pm.load(sample_runs / "restart")
    wide = run.pivot()
    assert wide.index.name == "step"
    assert wide.index.tolist() == list(range(300))
    assert wide["train/loss"].equals(run.series("train/loss"))
    assert (wide.loc[150, "train/loss"] == run.frame.query("segment == 1 and step == 150")["value"]).all()
    with pytest.raises(KeyError, match="unknown tag 'x'; available: train/loss"):
        run.pivot("x")
    with pytest.raises(KeyError, match="no values of rank 3"):
        run.series("train/loss", rank=3)
