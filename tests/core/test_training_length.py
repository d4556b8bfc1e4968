"""How long a training was to be, from its settings, and how far it came."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.core.run import Run, Stream, segments
from postmortem.core.training_length import training_length
from postmortem.core.view import View


def view(epochs, config, facts=None):
    builder = PointsBuilder()
    builder.extend("loss", range(41), [1 / (i + 1) for i in range(41)])
    builder.extend("epoch", range(len(epochs)), epochs)
    points = builder.build()
    readings = [Reading(source="csv", path="log.csv", facts=facts or {})]
    streams = [Stream("csv", "a", points, *segments(points))]
    return View(
        Run(
            name="a",
            path=Path("a"),
            streams=streams,
            event_list=[],
            problems=[],
            sources=[],
            config=config,
            readings=readings,
        )
    )


@pytest.mark.parametrize(
    ("epochs", "config", "words"),
    [
        ([0, 1, 2], {"epochs": 10}, "after epoch 3 of 10"),
        ([1, 2, 3], {"epochs": 10}, "after epoch 3 of 10"),
        ([0.5, 1.0, 2.35], {"num_train_epochs": 3}, "in epoch 3 of 3"),
        ([0.5, 1.0, 1.5], {"num_train_epochs": 3, "max_steps": -1}, "in epoch 2 of 3"),
        ([0, 1], {"trainer.max_steps": {"value": 100}, "epochs": 3}, "at step 40 of 100"),
    ],
)
def test_from_the_settings(epochs, config, words):
    """A whole epoch is one that ended, counted from 0 or from 1; a fraction is what was done; steps say more than
    epochs."""
    assert str(training_length(view(epochs, config))) == words


@pytest.mark.parametrize("value", [None, 0, -1, "auto", float("nan"), float("inf"), [100], 10**400, "9" * 5000])
def test_settings_that_are_no_plan(value):
    assert training_length(view([0, 1], {"max_steps": value})) is None


def test_what_a_file_says_of_itself_comes_first():
    """Of the plan that a log announces, the steps that were logged since count."""
    assert (
        str(training_length(view([0], {"max_steps": 500}, {"plan": {"done": 30, "planned": 50, "unit": "step"}})))
        == "at step 40 of 50"
    )
