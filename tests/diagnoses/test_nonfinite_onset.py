"""Which of several non-finite stretches broke the run, and what a sparse log says of its onset."""

from __future__ import annotations

import numpy as np

from postmortem.core.model import Event
from tests.diagnoses.cases import NAN_FROM_200, from_

HANDLED = [3, 4, 90]


def skip_then_break(x):
    x[HANDLED] = np.inf
    x[200:] = np.nan
    return x


def test_steps_that_the_scaler_skipped_own_no_later_nan(story, course):
    """Each skipped step is looked at by itself: the NaN at 200 is the root, the infinite norms before it are none."""
    tags = course(loss=from_(200, np.nan), grad_norm=skip_then_break)
    scale = np.full(400, 65536.0)
    for step in HANDLED:
        scale[step:] /= 2
    report = story(tags | {"loss_scale": scale})
    assert {f.name for f in report.findings} == {"nan-onset"}
    assert (report.findings[0].tag, report.findings[0].step) == ("loss", 200)
    assert report.diagnosis.last_good_step == 199


def test_overflows_that_the_log_reports_are_enough(story, course):
    """A scaler whose scale is not logged is known by its messages."""
    events = [Event(kind="ds-overflow", severity="info", step=s, message="OVERFLOW! Skipping step") for s in HANDLED]
    report = story(course(loss=from_(200, np.nan), grad_norm=skip_then_break), event_list=events)
    assert (report.findings[0].name, report.findings[0].step) == ("nan-onset", 200)


def test_single_norms_that_the_training_survived_are_info(story, course):
    """Without a scaler in the log: the loss and all later norms are finite, so nothing was lost; many are a warning."""

    def single(x):
        x[[3, 90]] = np.inf
        return x

    def many(x):
        x[100:300:10] = np.inf
        return x

    assert (story(course(grad_norm=single)).verdict, story(course(grad_norm=many)).verdict) == ("healthy", "suspect")


def test_norms_that_were_survived_own_no_later_nan_without_a_scaler_either(story, course):
    """The loss and the norms were finite for a hundred steps before the run broke."""
    report = story(course(loss=from_(200, np.nan), grad_norm=skip_then_break))
    assert (report.findings[0].name, report.findings[0].step) == ("nan-onset", 200)


def test_a_series_that_recovered_long_before_broke_later(story, course):
    """One NaN at 50 with 149 finite points after it is an episode of its own; the run broke at 200."""

    def twice(x):
        x[50] = np.nan
        x[200:] = np.nan
        return x

    root = story(course(**NAN_FROM_200 | {"loss": twice})).findings[0]
    assert (root.tag, root.step) == ("loss", 200)
    assert root.evidence["earlier_steps"] == [50]
    assert "first at step 50, and recovered" in root.message


def test_a_sparse_log_shows_an_interval(story):
    """With every fifth step logged, the onset lies between two rows; with every step it is a point."""
    t = np.arange(100)
    loss = np.where(t < 50, 2 * np.exp(-t / 50), np.nan)
    sparse, dense = (story({"loss": (every * t, loss)}).findings[0] for every in (5, 1))
    assert (sparse.step, sparse.evidence["between"]) == (250, [246, 250])
    assert "onset between 246 and 250" in sparse.message
    assert "between" not in dense.evidence
