"""A loss that stops falling too early."""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.detectors.loss_plateau import LossPlateau, _BrokenLines, _smooth_decays
from tests.detectors.cases import N, fires, noise, quiet


@fires(LossPlateau, step=0)
def a_loss_that_never_moves(base):
    return {"loss": 2.3 * noise(0.01)}


@fires(LossPlateau, step=8)
def a_loss_that_rose_in_its_first_steps_and_stays_there(base):
    loss = np.full(N, 4.845) * noise(0.0005)
    loss[:8] = [3.52, 4.16, 4.23, 3.65, 0.71, 7.9, 5.2, 5.1]
    return {"loss": loss}


@quiet(LossPlateau)
def a_loss_that_has_converged(base):
    """A loss that fell to a hundredth and stays there is done."""
    return {"loss": (0.02 + 2 * np.exp(-np.arange(N) / 60)) * noise()}


@pytest.mark.parametrize("n", [40, 333])
def test_all_parabolas_at_once_are_those_of_a_loop(n):
    """The squared errors of all kinks are those of polyfit, one kink at a time."""
    t = np.arange(n) / n
    y = np.log(2 * np.exp(-5 * t) + 0.3) + 0.01 * np.random.default_rng(n).standard_normal(n)
    kinks = np.unique(np.linspace(0.08 * n, 0.7 * n, 60).astype(int))
    heads = [y[:k] - np.polyval(np.polyfit(t[:k], y[:k], 2), t[:k]) for k in kinks]
    expected = [h @ h + ((y[k:] - y[k:].mean()) ** 2).sum() for h, k in zip(heads, kinks, strict=True)]
    np.testing.assert_allclose(_BrokenLines(t, kinks).errors(y), expected, rtol=1e-9)


def test_all_decays_at_once_fit_a_decay():
    """A curve of the family is fitted to rounding; what is none leaves the error of the best fit by least squares."""
    t = np.arange(200) / 200
    assert min(_smooth_decays(t, 2 + 0.5 * np.exp(-t / np.geomspace(0.01, 3.0, 80)[40]))) < 1e-24
    line = min(_smooth_decays(t, 1 - np.maximum(0, 0.5 - t)))
    tau = np.geomspace(0.01, 3.0, 80)
    y = 1 - np.maximum(0, 0.5 - t)
    shapes = [f for u in tau for f in (np.exp(-((t / u) ** 2)), np.exp(-t / u))]
    fits = [np.linalg.lstsq(np.stack([np.ones_like(t), f], axis=1), y, rcond=None) for f in shapes]
    assert 0 < line <= min(float(r[0]) for _, r, *_ in fits if len(r)) * (1 + 1e-9)


@quiet(LossPlateau)
def a_loss_that_falls_at_the_end_of_an_epoch(base):
    """A model that has seen its samples once knows them: the loss drops at once, and is flat before and after."""
    rng = np.random.default_rng(5)
    level = np.repeat([0.16, 0.06], [240, N - 240])
    level[:10] = np.linspace(1.3, 0.2, 10)
    return {"loss": level * np.exp(0.17 * rng.standard_normal(N))}
