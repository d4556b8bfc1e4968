"""The final values of a W&B run."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem.readers.wandb.summary import WandbSummary
from tests.readers.cases import usual_name


@usual_name(WandbSummary)
def name_of_a_file() -> str:
    return "wandb-summary.json"


def test_values_stand_at_the_last_step(tmp_path: Path) -> None:
    """All numbers, nested ones too, at `_step`; W&B's own keys are no tags."""
    path = tmp_path / "wandb-summary.json"
    path.write_text(
        '{"loss": NaN, "a": {"b": 2}, "best": "Infinity", "note": "x", "_step": 20, "_timestamp": 1.5e9, "_wandb": '
        '{"runtime": 3}}'
    )
    reading = WandbSummary.read(path)
    points = reading.points
    assert [(points.tags[c], int(s)) for c, s in zip(points.code, points.step, strict=True)] == [
        ("loss", 20),
        ("a.b", 20),
        ("best", 20),
    ]
    assert repr(points.value.tolist()) == "[nan, 2.0, inf]"
    assert reading.skipped == {"non-numeric values": 1}
    assert reading.stopped == 1.5e9


def test_a_counter_is_the_step(tmp_path: Path) -> None:
    """Where the history's counter is in the summary, it is the step, as in the history itself."""
    path = tmp_path / "wandb-summary.json"
    path.write_text('{"iter": 5000, "loss": 0.5, "_step": 20}')
    assert set(WandbSummary.read(path).points.step) == {5000}


@pytest.mark.parametrize("text", ["", '{"loss": 1', "[1]", "{" * 100_000, "null"])
def test_damage(tmp_path: Path, text: str) -> None:
    """What is no whole JSON object is a Problem."""
    path = tmp_path / "wandb-summary.json"
    path.write_text(text)
    reading = WandbSummary.read(path)
    assert len(reading.points) == 0
    assert len(reading.problems) == 1


@pytest.mark.parametrize("step", ["1e300", "Infinity", "NaN", '"x"'])
def test_impossible_steps(tmp_path: Path, step: str) -> None:
    """A `_step` that cannot be one leaves the values, at step 0."""
    path = tmp_path / "wandb-summary.json"
    path.write_text(f'{{"loss": 1, "_step": {step}}}')
    assert WandbSummary.read(path).points.step.tolist() == [0]
