"""The histories that older W&B clients wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.readers.wandb.history import WandbHistory
from tests.readers.cases import usual_name

if TYPE_CHECKING:
    from pathlib import Path


@usual_name(WandbHistory)
def name_of_a_file() -> str:
    return "wandb-history.jsonl"


def row(step: int, **values: Any) -> dict[str, Any]:
    return {**values, "_runtime": step * 2.0, "_timestamp": 1.56e9 + step * 2, "_step": step}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run as the client 0.8 leaves it: 40 rows, a counter of its own from row 0 on."""
    folder = tmp_path / "exp" / "wandb" / "run-20190612_101112-abcd1234"
    folder.mkdir(parents=True)
    rows = [row(i, **{"train/loss": 2.0 - i / 50 if i < 30 else "NaN", "lr": 1e-3}) for i in range(40)]
    rows[20] |= {"grads": {"_type": "histogram", "values": [1, 2], "bins": [0, 1, 2]}, "val": {"loss": 1.5}}
    (folder / "wandb-history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "wandb-events.jsonl").write_text(json.dumps({"system.cpu": 9.0, "_wandb": True, "_runtime": 1}) + "\n")
    (folder / "wandb-summary.json").write_text(json.dumps(rows[-1]))
    (folder / "wandb-metadata.json").write_text(json.dumps({"host": "n1", "state": "finished", "exitcode": 1}))
    (folder / "config.yaml").write_text("wandb_version: 1\n\nlr:\n  desc: null\n  value: 0.001\n")
    return folder


def test_a_folder_of_an_older_client_is_a_run(run: Path) -> None:
    """Steps, times, nested keys, NaN as text, media, configuration and how the program ended."""
    found = postmortem.load(run)
    frame = found.frame[found.frame["source"] == "wandb_history"]
    loss = frame[frame["tag"] == "train/loss"]
    assert loss["step"].tolist() == list(range(40))
    assert np.isnan(loss["value"].to_numpy()[30:]).all()
    assert loss["value"].to_numpy()[:2].tolist() == [2.0, 1.98]
    assert loss["wall_time"].tolist()[:2] == [1.56e9, 1.56e9 + 2]
    assert frame["tag"].unique().tolist() == ["train/loss", "lr", "val.loss"]
    assert found.config == {"lr": 0.001}
    reading = WandbHistory.read(run / "wandb-history.jsonl")
    assert reading.skipped == {"histograms": 1}
    assert (reading.ended, reading.facts["exit_code"], reading.facts["host"]) == ("completed", 1, "n1")


def test_declared_steps(run: Path) -> None:
    """The column that `define_metric` named is the step, where the metadata hold it."""
    rows = [row(i, **{"train/loss": 1.0, "my_count": i * 10}) for i in range(40)]
    (run / "wandb-history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (run / "wandb-metadata.json").write_text(json.dumps({"stepMetrics": {"train/*": "my_count"}}))
    points = WandbHistory.read(run / "wandb-history.jsonl").points
    assert points.step[points.code == points.tags.index("train/loss")].tolist() == [i * 10 for i in range(40)]


@pytest.mark.parametrize("metadata", ["", "[", "3", "[" * 100_000, '{"stepMetrics": 5, "startedAt": "yesterday"}'])
def test_metadata_that_say_nothing(run: Path, metadata: str) -> None:
    """The numbers do not depend on them."""
    (run / "wandb-metadata.json").write_text(metadata)
    reading = WandbHistory.read(run / "wandb-history.jsonl")
    assert len(reading.points) == 81
    assert reading.ended is None


_NAMES = st.text(max_size=3).map("x{}".format)  # none of which is a word for a step, in any language
_VALUES = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from(["NaN", "Infinity", "x", None, True]),
    st.dictionaries(_NAMES, st.floats()),
)


@settings(max_examples=300)
@given(st.lists(st.dictionaries(_NAMES, _VALUES, max_size=4), max_size=6), st.data())
def test_a_cut_costs_the_last_line(tmp_path_factory: Any, rows: list[dict[str, Any]], data: st.DataObject) -> None:
    """Of a file that is cut anywhere, all whole lines are read, and the rest of a line is a Problem."""
    path = tmp_path_factory.mktemp("cut") / "wandb-history.jsonl"
    text = "".join(json.dumps(r | {"_step": i, "loss": 1.0}) + "\n" for i, r in enumerate(rows))
    cut = data.draw(st.integers(0, len(text)))
    path.write_text(text[:cut])
    reading = WandbHistory.read(path)
    whole, rest = text[:cut].count("\n"), text[:cut].rpartition("\n")[2]
    complete = rest.endswith("}") and text[cut : cut + 1] == "\n"
    points = reading.points
    loss = points.step[points.code == points.tags.index("loss")].tolist() if len(points) else []
    assert loss == list(range(whole + complete))
    assert bool(reading.problems) == bool(rest and not complete)
