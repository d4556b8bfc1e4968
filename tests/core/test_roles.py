"""Roles from names as people write them."""

from __future__ import annotations

import pytest

from postmortem.core.roles import ROLES, role_of

NAMES = {
    "loss": [
        "loss",
        "train/loss",
        "Loss/train",
        "lm loss",
        "train_loss",
        "training_loss",
        "losses/policy_loss",
        "d_loss",
        "train/epoch_loss",
        "nll",
        "kl_loss",
        "objective_loss",
    ],
    "val_loss": [
        "val/loss",
        "val_loss",
        "eval_loss",
        "validation loss",
        "Loss/val",
        "val lm loss value",
        "valid_loss",
        "test/loss",
    ],
    "grad_norm": [
        "grad_norm",
        "grad norm",
        "train/grad_norm",
        "Grad/norm",
        "gnorm",
        "gradient_norm",
        "global_grad_norm",
    ],
    "layer_grad_norm": ["grad_norm/layer3", "grad_norm_layer0"],
    "lr": ["lr", "learning_rate", "train/lr", "LR", "learning rate", "lr-AdamW", "lr/group0"],
    "loss_scale": ["loss_scale", "loss scale", "AMP_scale", "train/loss_scale", "grad_scale"],
    "throughput": ["tokens/s", "samples_per_second", "perf/samples_per_sec", "throughput", "wps", "mfu"],
    "step_time": ["step_time", "Time/step", "elapsed time per iteration (ms)", "iter time (s)", "time"],
    "data_time": ["data_time", "Time/data", "perf/data_time"],
    "memory": ["gpu_mem_gb", "memory", "mem/allocated_gb", "Memory/gpu_gb"],
    "accuracy": ["acc", "accuracy", "train/acc", "top1"],
    "val_accuracy": ["val_acc", "eval_accuracy", "Accuracy/val", "val/acc"],
    "perplexity": ["ppl", "perplexity", "train_ppl"],
    "reward": ["reward_mean", "rollout_ep_rew_mean", "charts/episodic_return"],
    "epoch": ["epoch", "train/epoch"],
    None: [
        "accumulated_submission_time",
        "accumulated_logging_time",
        "train_wall",
        "wall",
        "loss_scale_window",
        "min_scale",
        "number of nan iterations",
        "consumed samples",
        "total_duration",
        "batch_size",
        "loss_weight",
        "objective",
        "train/objective",
        "policy_objective",
        "objective/entropy",
        "objective/kl",
        "approx_kl",
        "kl_coef",
        "elbo",
    ],
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in NAMES.items() for name in names])
def test_role_of(role, name):
    """Each name gets the role that a person would give it; counters, settings and totals get none."""
    assert role_of(name) == role


def test_roles_are_known():
    """No role outside of the list that the documentation and the options name."""
    assert {role for role in NAMES if role is not None} <= set(ROLES)


def test_a_name_of_a_megabyte_has_no_role():
    """A name beyond all reason costs no time: it has no role, however it begins and ends."""
    assert role_of("loss" + "x-" * 500_000 + "loss") is None
    assert role_of("loss/" + "x" * 200) == "loss"
