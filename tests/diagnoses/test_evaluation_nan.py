"""A NaN in the evaluation alone."""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.diagnoses.evaluation_nan import EvaluationNan
from tests.diagnoses.cases import NAN_FROM_200, from_, quiet, tells


@tells(EvaluationNan, root="nan-onset", step=209)
def a_validation_loss_that_turns_nan(course):
    return course(val_loss=from_(20, np.nan))


@quiet(EvaluationNan)
def both_are_logged_once_per_epoch_and_non_finite_from_the_same_one(course):
    epochs, nan = np.arange(40), from_(20, np.nan)
    return {tag: (epochs, nan(2 * np.exp(-epochs / 9))) for tag in ("val_loss", "loss")}


@quiet(EvaluationNan)
def only_the_training_is_non_finite(course):
    """The evaluation goes on: the logged training loss is at fault."""
    epochs = np.arange(40)
    return {"loss": (epochs, from_(20, np.nan)(2 * np.exp(-epochs / 9))), "val_loss": (epochs, 2 * np.exp(-epochs / 9))}


@quiet(EvaluationNan)
def the_training_is_not_logged_after_it(course):
    """Nothing shows that the training is finite."""
    return {
        "loss": (np.arange(200), 2 * np.exp(-np.arange(200) / 90)),
        **{t: v for t, v in course(val_loss=from_(20, np.nan)).items() if t == "val_loss"},
    }


@quiet(EvaluationNan)
def the_training_loss_was_nan_before(course):
    return course(**NAN_FROM_200)


@pytest.mark.parametrize(("every", "root"), [(10, "loss"), (60, "val_loss")])
def test_an_evaluation_between_two_rows_of_the_loss(story, every, root):
    """An evaluation that is NaN one row before the loss met the same fault: it is the training that is non-finite, also
    where the evaluation is the denser of the two and the first to tell."""
    t = np.arange(0, 400, every)
    loss = np.where(t < 250, 2 * np.exp(-t / 100), np.nan)
    evaluated = np.arange(49, 400, 50) if root == "loss" else np.arange(4, 400, 5)
    val = np.where(evaluated < 244, 2.1 * np.exp(-evaluated / 100), np.nan)
    report = story({"train_loss": (t, loss), "val_loss": (evaluated, val)})
    assert report.diagnosis is not None
    if root == "loss":
        assert (report.findings[0].tag, report.findings[0].step) == ("train_loss", 250)
        assert report.diagnosis.last_good_step == 240
        assert report.findings[1].because_of == report.findings[0].id
    else:
        assert report.diagnosis.name != "evaluation-nan"
        assert (report.findings[0].tag, report.findings[0].step) == ("val_loss", 244)
