"""A quantity that should vary and does not."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.constant_metric import ConstantMetric
from tests.detectors.cases import N, fires, quiet


@fires(ConstantMetric, step=9)
def an_accuracy_that_is_bit_identical(base):
    return base | {"val_acc": (np.arange(9, N, 10), np.full(40, 0.117))}


@quiet(ConstantMetric)
def an_accuracy_of_few_digits(base):
    """Rounded to two digits a slow rise repeats its values, but moves on."""
    return base | {"val_acc": (np.arange(9, N, 10), np.round(0.5 + np.arange(40) / 200, 2))}


@quiet(ConstantMetric)
def a_loss_that_came_to_rest_at_its_last_printed_digit(base):
    """It falls ever more slowly: 0.4556 for 60 rows, then 0.4555 for 300."""
    return base | {"train/l1_loss": np.round(0.4555 + 0.4 * np.exp(-np.arange(400) / 12), 4)}


@fires(ConstantMetric, step=200)
def a_loss_that_stops_at_once(base):
    """Frozen in the middle of its fall, with as many printed digits."""
    falling = np.round(0.4555 + 0.4 * np.exp(-np.arange(400) / 80), 4)
    return base | {"train/l1_loss": np.where(np.arange(400) < 200, falling, 0.4812)}


@quiet(ConstantMetric)
def a_score_after_the_training_set_is_memorised(base):
    """Without a training loss, nothing changes the predictions."""
    score = np.where(np.arange(40) < 9, 0.3 - 0.001 * np.arange(40), 0.26458)
    return {"loss": np.exp(-np.arange(N) / 15), "val_acc": (np.arange(9, N, 10), score)}


@fires(ConstantMetric, step=99)
def a_score_that_stops_while_the_loss_still_falls(base):
    score = np.where(np.arange(40) < 9, 0.3 - 0.001 * np.arange(40), 0.26458)
    return {"loss": 2 * np.exp(-np.arange(N) / 200), "val_acc": (np.arange(9, N, 10), score)}


@quiet(ConstantMetric)
def a_number_in_place_of_a_score(base):
    """COCO's mAP of small objects is -1 where there are none."""
    return base | {"coco/bbox_mAP_s": (np.arange(9, N, 10), np.full(40, -1.0))}


@fires(ConstantMetric, step=0)
def a_reward_that_stays_at_its_floor(base):
    return {"rollout/ep_rew_mean": np.full(200, -1.0)}


@quiet(ConstantMetric)
def a_sparse_reward_that_comes_late(base):
    return {"rollout/ep_rew_mean": np.where(np.arange(200) < 150, 0.0, 0.5)}


@quiet(ConstantMetric)
def a_few_updates_without_a_reward(base):
    return {"rollout/ep_rew_mean": np.zeros(20)}


@quiet(ConstantMetric)
def a_part_of_the_reward_that_stays_at_zero(base):
    return {"reward/format": np.zeros(200), "reward/total": np.linspace(0, 1, 200)}


@quiet(ConstantMetric)
def the_best_reward_so_far(base):
    """It stays as it is until a better one comes."""
    return base | {"best_reward": np.repeat([-0.31127, 0.10432, 0.69214], [100, 100, N - 200])}


@fires(ConstantMetric, step=200)
def a_reward_that_stands_still(base):
    return base | {"reward": np.repeat([-0.31127, 0.10432, 0.69214], [100, 100, N - 200])}


@quiet(ConstantMetric)
def the_highest_of_many_rewards(base):
    """It may be all that an episode can give; the mean moves."""
    return base | {
        "episode_return_max": np.minimum(-600 + np.arange(N) * 2.0, -335.2),
        "episode_return_mean": -900 + np.arange(N) * 1.01,
    }


@fires(ConstantMetric, step=2)
def an_accuracy_of_one_class_while_the_loss_falls(base):
    """The share of the largest class, from the second epoch on."""
    return {"loss": 0.6 + np.exp(-np.arange(N) / 30), "acc": np.where(np.arange(N) < 2, 0.28, 0.3135)}


@quiet(ConstantMetric)
def an_accuracy_that_has_learned_what_there_is(base):
    return {"loss": 0.01 + np.exp(-np.arange(N) / 30), "acc": np.where(np.arange(N) < 2, 0.9, 0.9885)}


def test_a_loss_that_has_converged_is_no_warning(view_of):
    """An optimizer of second order ends at the precision of its numbers; a loss that fell by half did not converge."""
    fall = 0.43 * np.exp(-np.arange(200) / 15)
    for floor, severity in ((9.242e-06, "info"), (0.4555, "warning")):
        [found] = ConstantMetric().detect(view_of({"loss": np.where(np.arange(200) < 120, fall + floor, floor)}))
        assert found.severity == severity


def test_a_few_rounded_numbers_may_not_have_moved_yet(view_of):
    """Stable-Baselines prints three digits; ten rows of 3.68e+03 are no sign of anything, sixty are."""
    assert not list(ConstantMetric().detect(view_of({"ep_rew_mean": np.full(10, 3680.0)})))
    assert list(ConstantMetric().detect(view_of({"ep_rew_mean": np.full(60, 3680.0)})))
