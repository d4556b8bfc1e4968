"""Histories that were saved as one JSON document."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.readers.json_history import JsonHistory
from tests.readers.cases import usual_name

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
KERAS = {"accuracy": [0.1, 0.5, 0.7], "loss": [2.5, 1.25, 0.5], "val_loss": [2.6, 1.5, 0.75]}


@usual_name(JsonHistory)
def name_of_a_file() -> str:
    return "history.json"


def saved(folder: Path, document: object, name: str = "history.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def column(run: postmortem.Run, tag: str) -> list[tuple[int, float]]:
    rows = run.frame[run.frame["tag"] == tag]
    return list(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("document", "tag", "axis"),
    [
        (KERAS, "loss", "row"),
        ({name: dict(enumerate(values)) for name, values in KERAS.items()}, "loss", "row"),
        ({"epochs": [0.0, 1.0, 2.0], "metrics": KERAS}, "metrics/loss", "epoch"),
        ({"history": KERAS, "args": {"lr": 0.1, "name": "a"}, "layers": [64, 64]}, "history/loss", "row"),
        ([{"epoch": i, "loss": value} for i, value in enumerate(KERAS["loss"])], "loss", "epoch"),
        ({"best": 2, "log_history": [{"step": i, "loss": v} for i, v in enumerate(KERAS["loss"])]}, "loss", "step"),
    ],
)
def test_the_forms(document: object, tag: str, axis: str, tmp_path: Path) -> None:
    """A list per metric, also in groups or with the index as keys, and a list of objects that count."""
    saved(tmp_path, document)
    run = postmortem.load(tmp_path)
    assert column(run, tag) == [(0, 2.5), (1, 1.25), (2, 0.5)]
    assert (run.step_axis, [stream.source for stream in run.streams]) == (axis, ["json"])
    assert postmortem.scan(tmp_path).runs[0].verdict == "healthy"


def test_a_history_that_becomes_nan(tmp_path: Path) -> None:
    """NaN as a bare word is a number, null is none; the steps are those of the list of epochs."""
    losses = [3.0, 2.0, math.nan, math.nan]
    saved(tmp_path, {"epoch": [1, 2, 3, 4], "loss": losses, "val_loss": [3.5, None, 2.5, None]})
    (run,) = postmortem.scan(tmp_path).runs
    assert (run.verdict, [(f.name, f.tag, f.step) for f in run.findings][:1]) == (
        "failed",
        [("nan-onset", "loss", 3)],
    )
    assert column(postmortem.load(tmp_path), "val_loss") == [(1, 3.5), (3, 2.5)]


def test_lists_of_other_lengths(tmp_path: Path) -> None:
    """Which row an evaluation belongs to is not known where it has fewer values: its list is named, not guessed."""
    saved(tmp_path, {"train_loss": [5.0, 4.0, 3.0, 2.0, 1.0], "val_accuracy": [0.1, 0.5]}, "results.json")
    (run,) = postmortem.scan(tmp_path).runs
    (problem,) = run.problems
    assert (run.verdict, problem.kind) == ("healthy", "limit")
    assert "val_accuracy (2)" in problem.what


@pytest.mark.parametrize(
    "document",
    [
        {"loss": [1.0, 0.5], "loss_names": ["mse", "l1"], "lr": 0.1, "name": "a", "a": 1, "b": 2, "c": 3},
        {"images": [{"id": 1, "width": 3}, {"id": 2, "width": 4}], "annotations": [{"bbox": [1, 2, 3, 4]}]},
        [{"id": 1, "loss": 0.5}, {"id": 2, "loss": 0.25}],
        {"fold": [1, 2, 3], "accuracy": [0.5, 0.25, 0.75]},
        {"loss": [0.5]},
        {"loss": "mse", "betas": [0.9, 0.99]},
        [1, 2, 3],
    ],
)
def test_other_documents(document: object, tmp_path: Path) -> None:
    """Settings, data, scores of samples and of folds are no history."""
    path = saved(tmp_path, document)
    assert not JsonHistory.claims(path, path.read_bytes())


def test_a_long_history(tmp_path: Path) -> None:
    """The loss may come after the part of the file that readers are shown first."""
    saved(tmp_path, {"accuracy": [i / 5000 for i in range(5000)], "loss": [3 / (i + 1) for i in range(5000)]})
    assert len(column(postmortem.load(tmp_path), "loss")) == 5000


def test_beside_the_text_of_the_run(tmp_path: Path) -> None:
    """A history next to the log of the training belongs to the same run and changes no verdict."""
    (tmp_path / "train.log").write_text("".join(f"epoch {i} loss {3 / i}\n" for i in range(1, 31)))
    saved(tmp_path, {"loss": [3 / i for i in range(1, 31)], "val_loss": [4 / i for i in range(1, 31)]})
    assert [run.verdict for run in postmortem.scan(tmp_path).runs] == ["healthy"]


@QUICK
@given(cut=st.integers(0, 400))
def test_every_prefix(tmp_path: Path, cut: int) -> None:
    """A file that was cut is no complete document: it is not claimed, and reading it names the damage."""
    data = json.dumps({"epochs": [0, 1, 2], "metrics": KERAS}).encode()
    path = tmp_path / "history.json"
    path.write_bytes(data[:cut])
    assert JsonHistory.claims(path, data[:cut]) == (cut >= len(data))
    assert bool(JsonHistory.read(path).problems) == (cut < len(data))


@pytest.mark.parametrize("name", ["log", "log.txt", "train.log"])
def test_a_list_of_objects_under_the_name_of_a_log(name: str, tmp_path: Path) -> None:
    """Chainer's LogReport saves one indented list in a file without an ending: each entry is a point."""
    entries = [{"epoch": i // 4, "main/loss": 2 * 0.9**i, "iteration": 100 + 100 * i} for i in range(12)]
    (tmp_path / name).write_text(json.dumps(entries, indent=4))
    run = postmortem.load(tmp_path)
    assert column(run, "main/loss") == [(100 + 100 * i, 2 * 0.9**i) for i in range(12)]


def test_a_list_of_other_objects_under_the_name_of_a_log_is_text(tmp_path: Path) -> None:
    """A list without a loss is no history, whatever the name."""
    (tmp_path / "log").write_text(json.dumps([{"name": "a", "size": 3}, {"name": "b", "size": 4}], indent=4))
    assert postmortem.load(tmp_path / "log").frame.empty
