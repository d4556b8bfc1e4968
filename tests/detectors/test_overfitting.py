"""A validation loss that turns while the training loss falls."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.overfitting import Overfitting
from tests.detectors.cases import N, fires, quiet


@fires(Overfitting, step=129)
def a_validation_loss_that_turns(base):
    return base | {"val/loss": (np.arange(9, N, 10), 0.5 + np.abs(np.arange(40) - 12) * 0.05)}


@quiet(Overfitting)
def both_losses_turn(base):
    """Where the training loss rises too, it is a divergence."""
    rise = np.maximum(1, np.exp((np.arange(N) - 129) / 100))
    return base | {
        "train/loss": base["train/loss"] * rise,
        "val/loss": (np.arange(9, N, 10), base["val/loss"][1] * rise[9::10]),
    }


def test_an_accuracy_of_the_evaluations_without_a_split_in_its_name(view_of, healthy):
    """`Prec@1` that is logged once a pass and rises: the loss of confident errors rises, the model improves."""
    steps, n = np.arange(9, N, 10), N // 10
    turns = healthy() | {"test/loss": (steps, 0.5 + np.abs(np.arange(n) - 12) * 0.05)}
    turns.pop("val/loss")
    rises, falls = 0.5 + 0.01 * np.arange(n), np.minimum(0.7, 0.9 - 0.01 * np.arange(n))
    for accuracy, severity in ((rises, "info"), (falls, "warning")):
        (found,) = Overfitting().detect(view_of(turns | {"Prec@1": (steps, accuracy)}))
        assert found.severity == severity
    (found,) = Overfitting().detect(view_of(turns | {"Prec@1": np.linspace(0.5, 0.9, N)}))
    assert found.severity == "warning"  # of the training batches


def test_an_accuracy_that_improved_only_while_the_loss_fell_does_not_improve(view_of):
    """The rise before the best validation loss, of a model that learned fast, excuses nothing after it."""
    epoch = np.arange(50)
    losses = {"train/loss": 0.6 * np.exp(-epoch / 2) + 1e-4, "val/loss": 0.45 + 0.02 * np.abs(epoch - 3)}
    score = np.r_[[0.65, 0.57, 0.75, 0.77], np.full(46, 0.797)]
    (found,) = Overfitting().detect(view_of(losses | {"val/accuracy": score}))
    assert found.severity == "warning"
    (found,) = Overfitting().detect(view_of(losses | {"val/accuracy": np.r_[score[:4], np.linspace(0.8, 0.9, 46)]}))
    assert found.severity == "info"


def test_an_error_rate_of_the_evaluations_that_still_falls(view_of):
    """The loss of confident errors rises, but fewer words are wrong."""
    step = np.arange(100, 15100, 100)
    near = np.arange(1000, 15100, 1000)
    losses = {
        "loss": (step, 0.75 * np.exp(-step / 3000) + 0.012),
        "eval_loss": (near, 0.21 + 0.00001 * np.abs(near - 9000)),
    }
    for rates, severity in ((14.0 * np.exp(-near / 30000), "info"), (np.full(15, 10.0), "warning")):
        (found,) = Overfitting().detect(view_of(losses | {"eval_wer": (near, rates)}))
        assert found.severity == severity


def test_a_small_rise_while_no_score_gets_worse(view_of):
    """A cross-entropy that is a tenth above its best value is no reason to stop if the score holds."""
    epoch = np.arange(60)
    losses = {
        "train/loss": 0.5 * np.exp(-epoch / 15),
        "val/loss": 0.4 + np.r_[0.3 * np.exp(-epoch[:20] / 4), 0.0015 * epoch[:40]],
    }
    for score, severity in ((0.75 + 0.0002 * epoch, "info"), (0.75 - 0.001 * epoch, "warning")):
        (found,) = Overfitting().detect(view_of(losses | {"val/dice": score}))
        assert found.severity == severity
    (found,) = Overfitting().detect(view_of(losses))
    assert found.severity == "warning"
