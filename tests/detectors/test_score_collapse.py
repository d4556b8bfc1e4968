"""A score or reward that loses what it had gained, for good."""

from __future__ import annotations

import numpy as np

import postmortem
from postmortem.detectors.score_collapse import ScoreCollapse
from tests.detectors.cases import N, fires, noise, quiet

RISE = np.interp(np.arange(N), [0, 200], [100, 170]) * noise()
GONE = np.interp(np.arange(N), [0, 200, 260], [100, 170, 95]) * noise()


@fires(ScoreCollapse)
def a_policy_that_collapses(base):
    return {"rollout/ep_rew_mean": (np.arange(N), GONE), "train/entropy_loss": (np.arange(N), RISE / -170 + 0.0)}


@fires(ScoreCollapse)
def an_accuracy_that_falls_to_chance(base):
    return base | {"train/accuracy": (np.arange(N), np.interp(np.arange(N), [0, 200, 220], [0.1, 0.8, 0.1]) * noise())}


@quiet(ScoreCollapse)
def a_reward_that_comes_back(base):
    course = np.interp(np.arange(N), [0, 150, 200, 260, 330], [100, 170, 95, 95, 165])
    return {"rollout/ep_rew_mean": (np.arange(N), course * noise())}


@quiet(ScoreCollapse)
def a_reward_that_is_only_noise(base):
    return {"rollout/ep_rew_mean": (np.arange(N), 100 * noise(0.5))}


@quiet(ScoreCollapse)
def a_discriminator_that_is_fooled(base):
    """Of a GAN, the accuracy of the discriminator falls back to one half when the generator is good."""
    return {"d_acc": (np.arange(N), np.interp(np.arange(N), [0, 100, 300], [0.5, 0.95, 0.52]) * noise(0.02))}


@quiet(ScoreCollapse)
def a_curiosity_that_wears_off(base):
    return {"mean_int_reward": (np.arange(N), GONE), "rollout/ep_rew_mean": (np.arange(N), RISE)}


@quiet(ScoreCollapse)
def a_recall_that_is_given_up_for_precision(base):
    steps = np.arange(N)
    recall = np.interp(steps, [0, 50, 200], [0.1, 0.9, 0.2]) * noise()
    return {"val/recall": (steps, recall), "val/precision": (steps, np.interp(steps, [0, 300], [0.1, 0.9]) * noise())}


def test_the_message_names_an_entropy_that_is_lost(tmp_path):
    """With the reward, the entropy goes to zero: the message says that the policy no longer explores."""
    entropy = np.interp(np.arange(N), [0, 200, 260], [1.1, 0.8, 1e-6])
    rows = (f"{i},{r},{e}" for i, (r, e) in enumerate(zip(GONE, entropy, strict=True)))
    (tmp_path / "progress.csv").write_text("step,ep_rew_mean,entropy\n" + "\n".join(rows) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    [finding] = [f for f in run.findings if f.name == "score-collapse"]
    assert "entropy is near zero since" in finding.message
    assert run.verdict == "suspect"


@fires(ScoreCollapse)
def a_reward_that_rises_at_once(base):
    """It is up within the first twentieth; the largest reward of a batch stays up."""
    mean = np.interp(np.arange(N), [0, 12, 80, 130], [0.38, 0.7, 0.8, 0.2]) * noise(0.02)
    return {"rewards/mean": mean, "rewards/max": np.interp(np.arange(N), [0, 40], [0.9, 0.97])}
