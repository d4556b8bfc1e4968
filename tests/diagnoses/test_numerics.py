"""An operation that left its range."""

from __future__ import annotations

import numpy as np

import postmortem
from postmortem.diagnoses.numerics import Numerics
from tests.diagnoses.cases import NAN_FROM_200, from_, quiet, tells


@tells(Numerics, root="nonfinite-gradient", step=200)
def a_gradient_that_is_nan_beside_a_finite_loss(course):
    return course(grad_norm=from_(200, np.nan))


@quiet(Numerics)
def a_batch_that_broke_the_loss(course):
    return course(**NAN_FROM_200)


def test_the_backward_pass_is_named_only_where_the_loss_of_the_step_is_known(story, course):
    """Where steps are not logged, or a step has several micro-batches, a finite loss proves nothing of it."""
    tags = course(grad_norm=from_(200, np.nan))
    every_step = story(tags).diagnosis
    assert every_step.strength == "likely"
    assert "likely in the backward pass" in every_step.summary
    several = story(tags, config={"gradient_accumulation_steps": 4}).diagnosis
    loss, (_, norm) = tags["loss"], tags["grad_norm"]
    tenth = story({"loss": (10 * np.arange(400), loss), "grad_norm": (10 * np.arange(400), norm)}).diagnosis
    for told in (several, tenth):
        assert told.strength == "possible"
        assert "backward" not in told.summary


def test_a_loss_reported_as_nan_in_words_comes_before_the_gradients_reported_after_it(tmp_path):
    """Then the log does not say that the loss was finite at that step, and nothing is said of the backward pass."""
    rows = "".join(f"step {i} loss {2 - i / 100:.3f}\n" for i in range(60))
    log = tmp_path / "train.log"
    log.write_text(f"{rows}NaN/Inf detected in loss!\nNaN gradient in encoder.weight\n")
    (run,) = postmortem.scan(log)
    root, gradient = (next(f for f in run.findings if f.name == name) for name in ("nan-onset", "nonfinite-gradient"))
    assert (root.because_of, gradient.because_of) == (None, root.id)
    assert run.diagnosis.strength == "possible"
    assert "backward" not in run.diagnosis.summary
    log.write_text(f"{rows}NaN gradient in encoder.weight\n")
    (alone,) = postmortem.scan(log)
    assert "loss logged at that step" not in alone.diagnosis.summary


def test_a_loss_of_exactly_zero_gets_the_advice_of_its_own_framework(story, course):
    """A gradient of zero is evidence for a loss without targets; an option of transformers helps only there."""
    zero = from_(200, 0.0)
    told = story(course(loss=zero, grad_norm=zero)).diagnosis
    assert "grad_norm is 0 from there as well" in told.summary
    assert "count the targets" in told.next[0]
    assert not any(action.startswith("set logging_nan_inf_filter") for action in told.next)
    tags = course(loss=zero, grad_norm=zero)
    tags = {"learning_rate" if tag == "lr" else tag: x for tag, x in tags.items()} | {"epoch": np.arange(400) / 100}
    told = story(tags).diagnosis
    assert any(action.startswith("set logging_nan_inf_filter") for action in told.next)
    told = story(course(loss=zero)).diagnosis
    assert "count the targets" not in " ".join(told.next)


def test_an_infinity_has_other_advice_than_a_nan(story, course):
    """An overflow to infinity comes of extreme values or large weights, a NaN of sqrt(0) or a mean over nothing."""
    step = np.arange(400) * 4 + 3
    for value, then in ((np.inf, "overflows"), (np.nan, "look for sqrt")):
        tags = {"loss": (step, from_(200, value)(course()["loss"]))}
        told = story(tags).diagnosis
        assert told.name == "numerics"
        assert told.next[0].startswith("check the samples of steps 800 to 803")
        assert then in told.next[1]


def test_two_rows_show_no_course(story):
    """Of a loss that has two finite rows it is not known whether it was stable."""
    told = story({"loss": (np.arange(3), np.array([0.7, 0.72, np.nan]))}).diagnosis
    assert told is not None
    assert not any("not stable" in text for text in told.evidence_against)
