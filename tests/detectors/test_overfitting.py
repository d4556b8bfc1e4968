"""A validation loss that turns while the training loss falls."""

from __future__ import annotations

import numpy as np
import pytest

import postmortem
from postmortem.detectors.overfitting import Overfitting
from postmortem.judging.around import around
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
        "eval_loss": (near, 0.21 + 0.00002 * np.abs(near - 9000)),
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


def test_the_values_named_are_logged_at_the_steps_named(view_of):
    """The medians decide; the sentence, the evidence and the report's values hold what the log has at these steps."""
    rng = np.random.default_rng(5)
    step = np.arange(4, 124, 4)
    train = 0.69 * np.exp(-step / 90) * np.exp(0.05 * rng.standard_normal(len(step)))
    held_out = 0.72 + 0.002 * np.abs(step - 30) + 0.004 * rng.standard_normal(len(step))
    logged = dict(zip(step.tolist(), held_out.tolist(), strict=True))
    view = view_of({"loss": (step, train), "eval_loss": (step, held_out)})
    (found,) = Overfitting().detect(view)
    evidence = found.evidence
    assert evidence["best_step"] == found.step
    for key in ("best", "end"):
        assert evidence[key] == pytest.approx(logged[evidence[f"{key}_step"]], rel=1e-5)
        assert f"{logged[evidence[f'{key}_step']]:.4g}" in found.message
    at_best, last = (float(train[step == evidence[f"{key}_step"]][0]) for key in ("best", "end"))
    assert (evidence["train_at_best"], evidence["train_end"]) == pytest.approx((at_best, last), rel=1e-5)
    shown = next(a for a in around(view, found) if a.tag == "eval_loss")
    assert (shown.before_step, shown.at_step) == (evidence["best_step"], evidence["end_step"])
    assert (shown.before, shown.at) == (logged[shown.before_step], logged[shown.at_step])


def test_a_score_at_chance_that_gave_its_gain_back_does_not_improve(view_of):
    """A binary score between 0.45 and 0.57 that peaked a third of the way and fell since excuses no rising loss."""
    epoch = np.arange(24)
    losses = {"train/loss": 0.7 * np.exp(-epoch / 3) + 1e-3, "val/loss": 0.69 + 0.08 * epoch}
    score = np.r_[[0.508, 0.516, 0.469, 0.484, 0.453, 0.49, 0.53, 0.57, 0.5625, 0.555], np.full(14, 0.545)]
    (found,) = Overfitting().detect(view_of(losses | {"val/accuracy": score}))
    assert found.severity == "warning"
    assert "improves" not in found.message


@pytest.mark.parametrize(("score", "quiet"), [("mAP", True), ("mAP@.5", True), ("BLEU-4", True), ("train_mAP", False)])
def test_a_part_that_rises_while_the_score_of_evaluations_improves_is_none(tmp_path, score: str, quiet: bool) -> None:
    """A score such as mAP is one of evaluations, though its name has no split and it stands in each row."""
    train, part, gain = "train_loss {:.4f}", "val_cls_loss {:.4f}", score + " {:.4f}"
    row = f"epoch {{}} {train} {part} {gain}\n"
    rows = (row.format(e, 2 * 0.93**e + 0.3, 0.3 + 0.01 * e, 0.6 * (1 - 0.95**e)) for e in range(80))
    (tmp_path / "train.log").write_text("".join(rows))
    [run] = postmortem.scan(tmp_path).runs
    assert ("overfitting" in [f.name for f in run.findings if f.severity == "warning"]) is not quiet


@pytest.mark.parametrize(("tag", "way", "expected"), [("Test error", -1, "info"), ("Test error", 1, "warning")])
def test_an_error_of_the_evaluation_decides_as_a_score_does(tag, way, expected, view_of):
    """A loss that rises by a tenth while the share of wrong answers holds is no overfitting to act on."""
    n = np.arange(60)
    rng = np.random.default_rng(3)
    loss = 0.57 + 0.4 * np.exp(-n / 6) + 0.003 * np.maximum(0, n - 20)
    error = 0.19 + 0.14 * np.exp(-n / 6) + 0.003 * rng.standard_normal(60)
    error += 0.002 * np.maximum(0, n - 20) * (way > 0)
    [found] = Overfitting().detect(
        view_of({"Training Loss": 0.2 + 0.8 * np.exp(-n / 30), "Test Loss": loss, tag: error})
    )
    assert found.severity == expected


def test_a_validation_loss_without_a_training_loss(view_of):
    """Where it doubles and no accuracy improves; that it may be a divergence is said."""
    steps, x = np.arange(20), 0.6 + 0.1 * np.abs(np.arange(20) - 4)
    (found,) = Overfitting().detect(view_of({"eval/loss": (steps, x), "eval/acc": (steps, np.full(20, 0.69))}))
    assert (found.severity, found.step in (3, 4, 5)) == ("warning", True)
    assert "no training loss is logged" in found.message
    assert not list(Overfitting().detect(view_of({"eval/loss": (steps, np.minimum(x, 0.9))})))
    better = 0.69 + 0.01 * steps
    assert not list(Overfitting().detect(view_of({"eval/loss": (steps, x), "eval/acc": (steps, better)})))


def test_a_loss_that_ends_above_where_it_began(view_of):
    """A small rise is no remark where all that was learned is lost: the accuracy was never good."""
    steps = np.arange(60)
    turns = np.concatenate((np.linspace(3.2, 2.8, 20), np.linspace(2.8, 3.4, 40)))
    flat = {"train/loss": np.linspace(3.4, 1.7, 60), "val/acc": (steps, np.full(60, 10.8))}
    for x, severity in ((turns, "warning"), (np.minimum(turns, 3.1), "info")):
        (found,) = Overfitting().detect(view_of(flat | {"val/loss": (steps, x)}))
        assert found.severity == severity
