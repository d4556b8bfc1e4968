"""A logged average that keeps a NaN while the training goes on."""

from __future__ import annotations

import numpy as np

from postmortem.core.model import Checkpoint
from postmortem.core.view import View
from postmortem.diagnoses.sticky_average import StickyAverage
from postmortem.judging.causes import diagnose
from tests.diagnoses.cases import NAN_FROM_200, from_, quiet, tells


@tells(StickyAverage, root="nan-onset", step=200)
def a_loss_that_stays_nan_with_finite_gradients(course):
    return course(loss=from_(200, np.nan))


@tells(StickyAverage, root="masked-nonfinite", step=200)
def a_loss_that_stays_zero_with_finite_gradients(course):
    return course(loss=from_(200, 0.0))


@quiet(StickyAverage)
def the_gradient_is_non_finite_too(course):
    return course(**NAN_FROM_200)


@quiet(StickyAverage)
def one_nan_that_is_not_kept(course):
    def once(x):
        x[200] = np.nan
        return x

    return course(loss=once)


def test_saved_weights_decide(story, course):
    """Finite weights from after the onset are evidence; non-finite ones refute it; without any, the first advice is to
    look at them."""
    report = story(course(loss=from_(200, np.nan)))
    assert report.diagnosis.strength == "likely"
    assert "postmortem checkpoints runs/exp7" in report.diagnosis.next[0]
    assert not any("resume from" in action for action in report.diagnosis.next)
    for finite in (True, False):
        report.run.checkpoints[:] = [Checkpoint(path="runs/exp7/ckpt-300.pt", step=300, finite=finite)]
        told, *_ = diagnose(View(report.run), report.findings)
        assert (told.name == "sticky-average") is finite
        assert ("the weights saved at step 300 are finite" in told.evidence_for) is finite
