"""A non-finite gradient norm at a step with a finite loss."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.nonfinite_gradient import NonfiniteGradient
from tests.detectors.cases import N, fires, put, quiet, spoiled


@fires(NonfiniteGradient, step=200)
def a_gradient_norm_that_turns_nan(base):
    return spoiled(base, "grad_norm", put(slice(200, None), np.nan)) | {"loss_scale": np.ones(N)}


@quiet(NonfiniteGradient)
def steps_that_the_loss_scaler_skipped(base):
    """Single infinite norms, after each of which the loss scale is halved and then recovers, are the scaler at work."""
    level = np.full(N, 65536.0)
    level[101:150] = level[301:350] = 32768.0
    return spoiled(base, "grad_norm", put([100, 300], np.inf)) | {"loss_scale": level}


@quiet(NonfiniteGradient)
def the_loss_is_nan_as_well(base):
    """The fault is in the forward pass: that is nan-onset."""
    broken = put(slice(200, None), np.nan)
    return spoiled(spoiled(base, "grad_norm", broken), "train/loss", broken)
