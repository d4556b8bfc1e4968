"""A loss at the level of guessing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

import postmortem
from postmortem.detectors.chance_level_loss import ChanceLevelLoss
from tests.detectors.cases import N, fires, noise, quiet

if TYPE_CHECKING:
    from pathlib import Path


def imbalanced(score, name):
    """A training of two classes of which one is nearly all, scored by its accuracy and by how the other is found."""
    steps = np.arange(29, N, 30)
    loss = (0.2 + 0.6 * np.exp(-np.arange(N) / 80)) * noise(0.01)
    return {"loss": loss, "pixel_acc": (steps, np.full(13, 0.996) * noise(0.001, 13)), name: (steps, score)}


@fires(ChanceLevelLoss, step=29)
def a_dice_of_zero_beside_a_high_accuracy(base):
    return imbalanced(np.r_[0.008, 0.007, 0.003, np.zeros(10)], "val_dice")


@fires(ChanceLevelLoss, step=29)
def an_f1_of_zero_beside_a_high_accuracy(base):
    return imbalanced(np.zeros(13), "val_f1")


@quiet(ChanceLevelLoss)
def a_dice_that_begins_to_rise_beside_a_high_accuracy(base):
    return imbalanced(np.r_[np.zeros(6), np.linspace(0.01, 0.5, 7)], "val_dice")


@fires(ChanceLevelLoss, step=0, config={"num_classes": 10})
def a_loss_at_the_log_of_the_classes(base):
    return {"loss": np.log(10) + 0.01 * np.log(noise(1.0))}


@quiet(ChanceLevelLoss, config={"num_classes": 10})
def a_loss_that_leaves_that_level(base):
    return {"loss": (0.3 + (np.log(10) - 0.3) * np.exp(-np.arange(N) / 100)) * noise(0.01)}


EVALUATIONS = np.arange(29, N, 30)
"""A training loss that falls a little: it memorises single samples."""
CREEPS = np.linspace(1.63, 1.55, N) * noise(0.02)


def evaluated(loss, score):
    n = len(EVALUATIONS)
    return {"loss": CREEPS, "val_loss": (EVALUATIONS, loss * noise(0.006, n)), "val_acc": (EVALUATIONS, score)}


@fires(ChanceLevelLoss, step=29, config={"num_classes": 5})
def labels_that_fit_nothing(base):
    return evaluated(np.full(13, 1.63), 0.2 * noise(0.12, 13, seed=2))


@fires(ChanceLevelLoss, step=29)
def labels_that_fit_nothing_with_a_number_of_classes_that_nobody_told(base):
    return evaluated(np.full(13, 1.63), 0.2 * noise(0.12, 13, seed=2))


@quiet(ChanceLevelLoss, config={"num_classes": 5})
def evaluations_that_leave_chance_late(base):
    return evaluated(np.linspace(1.63, 1.52, 13), np.linspace(0.2, 0.31, 13))


@quiet(ChanceLevelLoss, config={"num_classes": 10})
def an_accuracy_above_chance_with_a_loss_that_happens_to_be_at_it(base):
    return evaluated(np.full(13, np.log(10)), 0.25 * noise(0.05, 13, seed=2))


LEARNS = np.interp(np.arange(N), [0, 300], [np.log(10), 0.1])
SCORES = np.interp(np.arange(N), [0, 300], [0.1, 0.97])
DEAD = np.arange(N) >= 320


@fires(ChanceLevelLoss, step=320)
def a_training_that_loses_late_what_it_had_learned(base):
    """Both say chance among ten classes, to the end of the log."""
    loss = np.where(DEAD, np.log(10), LEARNS) * noise(0.002)
    return {"loss": loss, "accuracy": np.where(DEAD, 0.1, SCORES) * noise(0.01)}


@fires(ChanceLevelLoss, step=9)
def a_short_training_that_loses_what_it_had_learned(base):
    loss = np.array([2.3, 2.0, 1.4, 0.9, 0.6, 0.4, 0.3, 0.2, 1.9, 2.303, 2.303, 2.303, 2.303, 2.303])
    score = np.array([11, 30, 55, 70, 80, 86, 89, 91, 33, 9.8, 10, 9.8, 9.8, 9.8])
    return {"loss": (np.arange(14), loss), "accuracy": (np.arange(14), score)}


@quiet(ChanceLevelLoss)
def a_new_task_from_which_it_recovers(base):
    new = np.interp(np.arange(N), [320, N], [np.log(10), 1.2])
    return {"loss": np.where(DEAD, new, LEARNS), "accuracy": np.where(DEAD, 0.1 + (2.3 - new) / 3, SCORES)}


@quiet(ChanceLevelLoss)
def a_loss_that_happens_to_end_at_the_log_of_a_number(base):
    """The accuracy is not that of guessing."""
    loss = np.where(DEAD, np.log(10), LEARNS) * noise(0.002)
    return {"loss": loss, "accuracy": np.where(DEAD, 0.55, SCORES) * noise(0.01)}


@quiet(ChanceLevelLoss)
def a_score_of_the_batches_while_the_loss_still_falls(base):
    return {"loss": (8 + 4 * np.exp(-np.arange(N) / 100)) * noise(0.01), "accuracy": np.zeros(N)}


@fires(ChanceLevelLoss, step=0)
def a_score_at_zero_with_a_loss_that_does_not_fall(base):
    return {"loss": 8 * noise(0.01), "accuracy": np.zeros(N)}


FLIPS = np.where(np.arange(N) % 90 < 50, 0.4947, 0.5053)


@fires(ChanceLevelLoss, step=0)
def a_score_that_is_always_one_of_two_shares(base):
    """All samples are called one class, then the other: the scores add up to one."""
    return {"loss": 0.0033 * noise(0.01), "accuracy": FLIPS, "val_accuracy": 1 - FLIPS}


@fires(ChanceLevelLoss, step=0)
def a_score_in_per_cent_that_is_always_one_of_two_shares(base):
    return {"loss": 0.0033 * noise(0.01), "accuracy": 100 * FLIPS}


@quiet(ChanceLevelLoss)
def two_values_that_do_not_add_up_to_one(base):
    return {"loss": 0.0033 * noise(0.01), "accuracy": FLIPS + 0.013}


@quiet(ChanceLevelLoss)
def two_shares_while_the_loss_falls(base):
    return base | {"accuracy": FLIPS}


@quiet(ChanceLevelLoss)
def two_shares_beside_a_score_that_varies(base):
    return {"loss": 0.0033 * noise(0.01), "accuracy": FLIPS, "val_accuracy": np.linspace(0.52, 0.61, N)}


RISES = [0.0, 0.0, 0.0001, 0.0002, 0.0005, 0.0009, 0.001, 0.0012, 0.0015, 0.0018]


@fires(ChanceLevelLoss, step=39)
def a_rare_score_near_zero_while_the_loss_falls(base):
    """Evaluations say that nothing is learned, whatever the loss does; the record of the best one says no more."""
    dice = np.array([0, 4e-6, 0.0027, 0, 0.0005, 0.0002, 0.0003, 0.0005, 0.0001, 0.0001])
    steps = np.arange(39, N, 40)
    return base | {"mean_dice": (steps, dice), "best_dice": (steps, np.maximum.accumulate(dice))}


@quiet(ChanceLevelLoss)
def a_rare_score_that_starts_to_rise(base):
    return base | {"mean_dice": (np.arange(39, N, 40), RISES)}


@quiet(ChanceLevelLoss)
def a_score_near_zero_beside_another_that_is_not(base):
    steps = np.arange(39, N, 40)
    return base | {"dice_rare": (steps, np.zeros(10)), "dice_common": (steps, 0.1 + 0.05 * np.arange(10))}


@fires(ChanceLevelLoss)
def an_accuracy_of_less_than_one_per_cent(base):
    """0.9 beside values above 1 is 0.9 %, not 90 %."""
    return {"loss": np.log(100) * noise(0.002), "acc": 0.9 * noise(0.3, seed=2)}


@pytest.mark.parametrize(
    ("told", "classes"),
    [("num_classes: 100", 100), ("Found 50000 images belonging to 100 classes.", 100), ("chance=1%", 100), ("", 98)],
)
def test_the_number_that_the_log_prints_counts(tmp_path: Path, told: str, classes: int) -> None:
    """What the log prints of classes or chance is used, not a number estimated from loss and accuracy."""
    loss, acc = math.log(100) * 0.9945 * noise(0.0005), 1.02 * noise(0.02, seed=2)
    rows = (f"step {i} loss {x:.5f} acc {y:.3f}%\n" for i, (x, y) in enumerate(zip(loss, acc, strict=True)))
    (tmp_path / "train.log").write_text(f"{told}\n" + "".join(rows))
    [run] = postmortem.scan(tmp_path).runs
    [finding] = [f for f in run.findings if f.name == "chance-level-loss"]
    assert finding.evidence["classes"] == classes


def test_another_number_of_classes_is_no_chance(tmp_path: Path) -> None:
    """A loss near ln(98) is none of guessing where the log prints that there are 1000 classes."""
    loss, acc = math.log(98) * noise(0.0005), 1.02 * noise(0.02, seed=2)
    rows = (f"step {i} loss {x:.5f} acc {y:.3f}%\n" for i, (x, y) in enumerate(zip(loss, acc, strict=True)))
    (tmp_path / "train.log").write_text("num_classes: 1000\n" + "".join(rows))
    [run] = postmortem.scan(tmp_path).runs
    assert "chance-level-loss" not in {f.name for f in run.findings}


FEW = np.arange(12)


@fires(ChanceLevelLoss, step=0)
def a_loss_above_the_level_of_guessing_with_an_accuracy_at_chance(base):
    """A rate that is too high keeps the loss of three classes some per cent above ln(3)."""
    return {
        "loss_cls": 1.08 * np.log(3) * noise(0.01, 12),
        "loss_bbox": 0.4 * noise(0.2, 12),
        "acc": 33 * noise(0.04, 12),
    }


@fires(ChanceLevelLoss, step=0)
def a_loss_that_only_falls_to_the_level_of_guessing(base):
    """Shuffled labels: the loss of a poor start falls to ln(10), the accuracy stays near a tenth."""
    return {"loss": np.log(10) * (1 + 0.05 * np.exp(-FEW / 3)), "val_accuracy": 0.112 + 0.001 * (FEW % 4)}


@quiet(ChanceLevelLoss)
def a_short_run_that_leaves_chance(base):
    return {"loss": np.log(10) * (1.04 - 0.01 * FEW), "accuracy": 0.1 + 0.012 * FEW}


@quiet(ChanceLevelLoss)
def an_accuracy_and_a_loss_of_other_numbers_of_classes(base):
    """The loss of a language model at 3.2 and a share of 0.1 are no guessing among 10 classes."""
    return {"loss": 3.2 * noise(0.01, 12), "accuracy": 0.1 * noise(0.01, 12)}


@quiet(ChanceLevelLoss)
def two_players_in_balance(base):
    """A discriminator at ln(2) with half of its answers right is no classifier that guesses."""
    return {"loss": np.log(2) * noise(0.005, 12), "accuracy": 0.5 * noise(0.01, 12)}


@quiet(ChanceLevelLoss)
def a_memorised_training_set(base):
    """The validation loss starts near ln(4) and rises: overfitting, of which the accuracy is a consequence."""
    train, test = 1.6 * np.exp(-np.arange(N) / 30), 5.8 - 4 * np.exp(-np.arange(N) / 30)
    return {"loss": train, "val_loss": test, "val_acc": 0.26 * noise(0.01)}


POOR = np.abs(np.random.default_rng(3).normal(0, 0.04, N)).clip(0, 0.14)
POOR[: N // 4] *= 0.5


@fires(ChanceLevelLoss, step=0)
def a_score_of_overlap_that_stays_poor(base):
    """The training loss falls, and the segmentation of the validation data hardly overlaps with their labels."""
    return {"loss": (0.5 + 3 * np.exp(-np.arange(N) / 80)) * noise(0.01), "val_dice": POOR}


@quiet(ChanceLevelLoss)
def a_score_of_overlap_that_rises_slowly(base):
    return {"loss": (0.5 + 3 * np.exp(-np.arange(N) / 80)) * noise(0.01), "val_dice": np.linspace(0, 0.14, N)}


@quiet(ChanceLevelLoss)
def a_loss_that_is_named_after_the_score(base):
    falling = 0.14 * np.exp(-np.arange(N) / 90)
    return {"loss": (0.5 + 3 * np.exp(-np.arange(N) / 80)) * noise(0.01), "val_dice": falling}


FLAT = 120 * noise(0.05)
USELESS = np.random.default_rng(4).normal(0, 0.008, N).clip(-0.04, 0.04)


@fires(ChanceLevelLoss, step=0)
def a_value_function_that_explains_nothing(base):
    return {"train/explained_variance": USELESS, "rollout/ep_rew_mean": FLAT, "train/loss": 20 * noise(0.1)}


@quiet(ChanceLevelLoss)
def a_reward_that_rises_without_a_value_function(base):
    rising = FLAT * np.linspace(1, 4, N)
    return {"train/explained_variance": USELESS, "rollout/ep_rew_mean": rising, "train/loss": 20 * noise(0.1)}


@quiet(ChanceLevelLoss)
def a_value_function_that_learns(base):
    learned = USELESS + np.linspace(0, 0.6, N)
    return {"train/explained_variance": learned, "rollout/ep_rew_mean": FLAT, "train/loss": 20 * noise(0.1)}


@pytest.mark.parametrize(("end", "found"), [(0.0683, ["chance-level-loss"]), (0.12, [])])
def test_a_poor_accuracy_that_does_not_change_while_the_loss_falls(view_of, end, found):
    """A model of language that has learned how often words are, no more: 6.6 % are right from the first epoch on."""
    epoch = np.arange(52)
    loss = 8.6 + 2.6 * np.exp(-epoch / 20)
    tags = {"Train Loss": loss, "Val Loss": loss + 0.01, "Val Token Acc": np.linspace(0.066, end, 52)}
    assert [f.name for f in ChanceLevelLoss().detect(view_of(tags))] == found


@pytest.mark.parametrize(("planned", "found"), [(10_000, False), (200, True)])
def test_a_log_that_ends_in_the_warm_up(tmp_path: Path, planned: int, found: bool) -> None:
    """A preference loss begins at log 2; while the rate still rises, early in the plan, that says nothing."""
    swing = np.random.default_rng(5).normal(0, 0.02, 200)
    rows = (
        f'{{"current_steps": {i}, "total_steps": {planned}, "loss": {0.6931 + swing[i - 1]:.4f}, '
        f'"accuracy": {(0.25, 0.5, 0.5, 0.75)[i % 4]}, "lr": {1e-9 * i}}}\n'
        for i in range(1, 201)
    )
    (tmp_path / "trainer_log.jsonl").write_text("".join(rows))
    (report,) = postmortem.scan(tmp_path / "trainer_log.jsonl").runs
    names = {f.name for f in report.findings}
    assert bool(names & {"chance-level-loss", "loss-plateau"}) is found


@fires(ChanceLevelLoss, step=0)
def an_area_under_the_curve_of_a_coin(base):
    """Two classes: the accuracy would only tell their shares, the area under the ROC curve tells chance."""
    return {"loss": math.log(2) + 0.0003 * np.log(noise(1.0)), "val_auc": 0.5 + 0.002 * np.log(noise(1.0))}


@quiet(ChanceLevelLoss)
def an_area_under_the_curve_that_rises(base):
    return {"loss": np.linspace(math.log(2), 0.66, N) * noise(0.001), "val_auc": np.linspace(0.5, 0.64, N)}


@quiet(ChanceLevelLoss)
def a_score_that_began_far_below_the_share_it_settles_at(base):
    """0.32 is no guess among three classes where the score was 0.04 at first: there are many more classes."""
    score = np.r_[0.0425, 0.198, 0.293, 0.312, 0.322, 0.32, 0.321, 0.319, 0.322, 0.32]
    held_out = np.r_[4.36, 3.4, 2.97, 3.2, 3.9, 4.4, 4.8, 5.2, 5.5, 5.7]
    steps = np.arange(29, 10 * 30, 30)
    return {
        "train/loss": (np.arange(300), 4.8 * np.exp(-np.arange(300) / 60) + 0.05),
        "val/accuracy": (steps, score),
        "val/loss": (steps, held_out),
    }


@quiet(ChanceLevelLoss)
def a_precision_of_boxes_at_a_third(base):
    """It is no share of right answers, and a part of a loss near ln(3) is no loss of guessing among three classes."""
    n = 35
    tags = {
        "dfl_loss": 1.126 * noise(0.01, n),
        "box_loss": np.linspace(1.9, 1.2, n),
        "mAP50-95": 0.3235 * noise(0.04, n),
    }
    return {tag: (np.arange(1, n + 1), values) for tag, values in tags.items()}
