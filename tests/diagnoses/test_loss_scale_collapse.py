"""A loss scaler that halves for ever."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.loss_scale_collapse import LossScaleCollapse
from tests.diagnoses.cases import T, from_, quiet, tells


@tells(LossScaleCollapse, root="loss-scale-collapse")
def a_scale_halved_at_every_step(course):
    return course(grad_norm=from_(200, np.inf)) | {"loss_scale": 65536.0 * 0.5 ** np.maximum(0, T - 199)}


@quiet(LossScaleCollapse)
def a_scale_that_sinks_slowly(course):
    return course() | {"loss_scale": 65536.0 * 0.5 ** (T // 50)}


def test_infinite_gradients_are_its_consequence(story, course):
    """A scaler that halves for ever is the root; the infinite gradients on the way are its consequence."""
    tags = course(grad_norm=from_(200, np.inf))
    tags["loss_scale"] = 65536.0 * 0.5 ** np.maximum(0, T - 199)
    report = story(tags)
    assert report.diagnosis.name == "loss-scale-collapse"
    assert report.findings[0].name == "loss-scale-collapse"
    assert all(
        f.because_of == report.findings[0].id
        for f in report.findings[1:]
        if f.name in ("inf-onset", "nonfinite-gradient")
    )


def test_a_loss_that_overflows_in_the_step_of_the_first_fall_comes_before_the_scale(story, course):
    """Some batches still pass, so the weights are finite: the forward pass overflows, and no scale changes that."""
    scale = 65536.0 * 0.5 ** np.maximum(0, T - 199)
    loss = np.where((T >= 200) & (T % 10 > 0) | (T == 200), np.nan, course()["loss"])
    told = story(course() | {"loss_scale": scale, "loss": loss}).diagnosis
    assert (told.name, told.strength) == ("fp16-overflow", "likely")
    assert "likely in the forward pass" in told.summary
    report = story(course() | {"loss_scale": scale, "loss": loss})
    first = next(f for f in report.findings if f.name == "nan-onset")
    assert next(f for f in report.findings if f.name == "loss-scale-collapse").because_of == first.id
    finite = story(course(grad_norm=from_(200, np.inf)) | {"loss_scale": scale}).diagnosis
    assert finite.name == "loss-scale-collapse"
