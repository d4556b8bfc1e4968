"""The Hugging Face Trainer's state file, whole and cut."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmortem.core.reading import Reading
from postmortem.readers.trainer_state import TrainerState
from tests.readers.cases import usual_name

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@usual_name(TrainerState)
def name_of_a_file() -> str:
    return "trainer_state.json"


def state(n: int, **more: object) -> dict[str, object]:
    log = [{"epoch": i / 10, "grad_norm": 1.0, "loss": 1 / i, "step": 10 * i} for i in range(1, n + 1)]
    return {
        "best_metric": None,
        "global_step": 10 * n,
        "is_local_process_zero": True,
        "log_history": log,
        "max_steps": 100,
        "num_train_epochs": 3,
        **more,
    }


def read(path: Path, text: str) -> Reading:
    path.write_text(text)
    return TrainerState.read(path)


def column(reading: Reading, tag: str) -> list[tuple[int, float]]:
    points = reading.points
    if tag not in points.tags:
        return []
    code = points.tags.index(tag)
    return [(int(s), float(v)) for c, s, v in zip(points.code, points.step, points.value, strict=True) if c == code]


def test_a_whole_state(tmp_path: Path) -> None:
    """Tags as they are named, the step of each entry, the settings, and a run that has not come to its end."""
    content = state(3)
    content["log_history"] += [{"eval_loss": 0.5, "eval_note": "x", "step": 30}, {"train_runtime": 9.0}]  # type: ignore[operator]
    reading = read(tmp_path / "trainer_state.json", json.dumps(content))
    assert column(reading, "loss") == [(10, 1.0), (20, 0.5), (30, 1 / 3)]
    assert column(reading, "eval_loss") == [(30, 0.5)]
    assert reading.points.tags == ["epoch", "grad_norm", "loss", "eval_loss"]
    assert reading.config == {"max_steps": 100, "num_train_epochs": 3}
    assert reading.skipped == {"non-numeric values": 1, "entries without a step": 1}
    assert (reading.ended, reading.problems) == (None, [])


@pytest.mark.parametrize(
    ("done", "planned", "ended"), [(100, 100, "completed"), (99, 100, None), (0, 0, None), (5, -1, None)]
)
def test_completed(tmp_path: Path, done: int, planned: int, ended: str | None) -> None:
    """The run is completed where the step it planned is reached."""
    assert (
        read(tmp_path / "trainer_state.json", json.dumps(state(1, global_step=done, max_steps=planned))).ended == ended
    )


def test_bare_nan(tmp_path: Path) -> None:
    """NaN and Infinity as bare words, as Python's json writes them, are numbers."""
    reading = read(
        tmp_path / "trainer_state.json",
        json.dumps({"log_history": [{"step": 1, "loss": math.nan, "grad_norm": math.inf}]}),
    )
    assert math.isnan(column(reading, "loss")[0][1])
    assert column(reading, "grad_norm") == [(1, math.inf)]


@QUICK
@given(cut=st.integers(1, 10**6), indent=st.sampled_from([None, 2]))
def test_cut_anywhere(tmp_path: Path, cut: int, indent: int | None) -> None:
    """A file cut at any byte keeps its complete entries, and its settings where they came before; one Problem says
    so."""
    text = json.dumps(state(8), indent=indent)
    cut = 1 + cut % (len(text) - 1)
    reading = read(tmp_path / "trainer_state.json", text[:cut])
    whole = text[:cut].count("}") if '"log_history"' in text[:cut] else 0
    assert column(reading, "loss") == [(10 * i, 1 / i) for i in range(1, whole + 1)]
    assert len(reading.problems) == 1
    if whole == 8 and '"max_steps": 100,' in text[:cut]:
        assert reading.config["max_steps"] == 100


@QUICK
@given(where=st.integers(0, 10**6), garbage=st.binary(min_size=1, max_size=40))
def test_garbage_in_the_middle(tmp_path: Path, where: int, garbage: bytes) -> None:
    """Damage within one entry leaves the entries before it, and nothing is raised."""
    text = json.dumps(state(8)).encode()
    where %= len(text)
    path = tmp_path / "trainer_state.json"
    path.write_bytes(text[:where] + garbage + text[where:])
    reading = TrainerState.read(path)
    before = text[:where].count(b"}") if b'"log_history": [' in text[:where] else 0
    assert [s for s, _ in column(reading, "loss")][: min(before, 8)] == [10 * i for i in range(1, min(before, 8) + 1)]


def test_entries_after_the_damage(tmp_path: Path) -> None:
    """An entry that is broken costs itself; those behind it are kept."""
    text = json.dumps(state(5)).replace('"step": 30', '"step" 30')
    reading = read(tmp_path / "trainer_state.json", text)
    assert [s for s, _ in column(reading, "loss")] == [10, 20, 40, 50]
    assert reading.config["max_steps"] == 100
    assert reading.problems[0].what == "damaged JSON"


@pytest.mark.parametrize("scalar", ["01", "1e", "1.2.3", "-", "--1", '"a\tb"', "1" * 5000, "nul"])
def test_damaged_settings(tmp_path: Path, scalar: str) -> None:
    """A setting that is no JSON value is left out; the entries and the other settings are kept."""
    text = f'{{"max_steps": {scalar}, "logging_steps": 5, "log_history": [{{"step": 1, "loss": 2.0}}, {{"st'
    reading = read(tmp_path / "trainer_state.json", text)
    assert reading.config == {"logging_steps": 5}
    assert column(reading, "loss") == [(1, 2.0)]


@pytest.mark.parametrize("text", ["", "[]", "3", "hello", '{"log_history": 3}', "{" * 100_000])
def test_something_else(tmp_path: Path, text: str) -> None:
    """What is no trainer state gives no points and at least one Problem."""
    reading = read(tmp_path / "trainer_state.json", text)
    assert len(reading.points) == 0
    assert reading.problems


def test_digits_beyond_any_float(tmp_path: Path) -> None:
    """An integer of 401 digits is damage that is counted, not an infinity."""
    path = tmp_path / "trainer_state.json"
    path.write_text(
        f'{{"log_history": [{{"step": 1, "loss": {"9" * 401}, "note": "x"}}, {{"step": 2, "loss": Infinity}}]}}'
    )
    reading = TrainerState.read(path)
    assert reading.points.value.tolist() == [float("inf")]
    assert reading.skipped == {"integers too large for a float (damaged)": 1, "non-numeric values": 1}
