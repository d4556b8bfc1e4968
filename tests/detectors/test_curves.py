"""What the shape of a curve says: a jump or a climb, a pause or an end, learning or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Finding

N = 600
STEPS = np.arange(N)
NOISE = np.exp(0.05 * np.random.default_rng(3).standard_normal(N))
DECAY = (0.3 + 2.0 * np.exp(-STEPS / 60)) * NOISE


def found(folder: Path, **columns: np.ndarray) -> dict[str, Finding]:
    """The last finding of each name of a run that logs these columns at each step."""
    rows = (",".join(str(v) for v in (i, *row)) for i, row in enumerate(zip(*columns.values(), strict=True)))
    (folder / "metrics.csv").write_text(",".join(["step", *columns]) + "\n" + "\n".join(rows) + "\n")
    [run] = postmortem.scan(folder).runs
    return {f.name: f for f in run.findings}


def test_a_slow_climb_is_divergence_alone(tmp_path: Path) -> None:
    """A loss that climbs over many points has no spike, even if its noise makes the first points stand out."""
    loss = DECAY + 0.02 * np.clip(STEPS - 350, 0, None)
    loss[354] *= 1.4
    assert set(found(tmp_path, loss=loss)) == {"divergence"}


def test_a_climb_that_comes_back_is_no_spike(tmp_path: Path) -> None:
    """A spike is a jump: a loss that goes up and down again over many points has none."""
    hump = np.exp(1.5 * np.exp(-(((STEPS - 400) / 10) ** 2)))
    assert "loss-spike" not in found(tmp_path, loss=DECAY * hump)


def test_a_climb_that_reaches_the_end_is_reported(tmp_path: Path) -> None:
    """A climb that begins shortly before the log ends is too short for divergence, and is no reason to be silent."""
    climb = np.exp(np.clip(STEPS - 575, 0, None) / 8)
    assert set(found(tmp_path, loss=DECAY * climb)) & {"loss-spike", "divergence"}


def test_a_spike_names_the_value_that_is_logged_at_its_step(tmp_path: Path) -> None:
    """The step and the value of the message stand together in the log; a later peak has its own step."""
    loss = DECAY.copy()
    loss[400:404] *= (8, 12, 20, 3)
    spike = found(tmp_path, loss=loss)["loss-spike"]
    assert f"to {loss[400]:.4g} at step 400 (peak {loss[402]:.4g} at step 402)" in spike.message


def test_a_jump_of_few_noises_in_a_noisy_loss_is_none(tmp_path: Path) -> None:
    """Twice the level, at four times the noise, is what a noisy loss does by itself now and then."""
    noise = np.random.default_rng(1).uniform(-0.35, 0.35, 160)
    noise[148] = 0.72
    assert found(tmp_path, loss=(0.7 + 3 * np.exp(-np.arange(160) / 30)) * np.exp(noise)) == {}


def test_a_gradient_norm_that_grows_from_nothing_has_no_spike(tmp_path: Path) -> None:
    """With an adapter that starts at zero the norm grows to its normal size within few steps."""
    norm = 0.06 * (1 - 0.92 * np.exp(-np.clip(STEPS - 60, 0, None) / 2)) * NOISE
    assert found(tmp_path, loss=DECAY, grad_norm=norm) == {}


def test_overfitting_needs_the_sum_of_the_validation_losses(tmp_path: Path) -> None:
    """One part of the validation loss that rises while the sum falls is no overfitting."""
    parts = {
        "train/box_loss": DECAY,
        "train/obj_loss": DECAY * 0.5,
        "val/box_loss": DECAY + 0.3,
        "val/obj_loss": (0.03 + 0.02 * STEPS / N) * NOISE,
    }
    assert found(tmp_path, **parts) == {}
    parts["val/obj_loss"] = (0.03 + 4 * STEPS / N) * NOISE
    assert found(tmp_path, **parts)["overfitting"].severity == "warning"


@pytest.mark.parametrize(("until", "severity"), [(500, "info"), (30, "warning")])
def test_overfitting_while_the_accuracy_improves_is_info(tmp_path: Path, until: int, severity: str) -> None:
    """A validation loss may rise because of few confident errors."""
    rising = (0.8 + np.abs(STEPS - 100) / N) * NOISE
    accuracy = 0.6 + 0.35 * np.clip(STEPS / until, 0, 1)
    assert found(tmp_path, loss=DECAY, val_loss=rising, val_acc=accuracy)["overfitting"].severity == severity


def stopped(at: int, level: float = 1.0) -> np.ndarray:
    """A loss that falls steadily and stops abruptly."""
    return np.where(at > STEPS, level + 2.0 * (1 - STEPS / at), level) * NOISE


def test_a_stop_of_the_loss_is_a_plateau_unless_the_validation_loss_goes_on(tmp_path: Path) -> None:
    """As long as the validation loss falls, the training has an effect."""
    assert set(found(tmp_path, loss=stopped(250))) == {"loss-plateau"}
    assert found(tmp_path, loss=stopped(250), val_loss=2.0 - STEPS / 400) == {}


def test_a_rate_far_below_its_peak_is_not_called_zero(tmp_path: Path) -> None:
    """A rate of 1e-7 is no zero: where the loss stands still with it, that is the finding, with the number."""
    rate = np.where(STEPS < 70, 1e-3, 1e-7)
    [(name, finding)] = found(tmp_path, loss=(1.4 + 1.6 * np.exp(-np.minimum(STEPS, 70) / 30)) * NOISE, lr=rate).items()
    assert (name, finding.step) == ("loss-plateau", 70)
    assert "from 0.001 to 1e-07" in finding.message


def test_a_loss_of_guessing_is_recognised_from_loss_and_accuracy_together(tmp_path: Path) -> None:
    """An accuracy of 1.1 % is near 1/100; the loss of ln(100) says that there are 100 classes."""
    loss = np.log(100) + 0.01 * np.random.default_rng(0).standard_normal(N)
    finding = found(tmp_path, loss=loss, acc=np.full(N, 0.011) * NOISE)["chance-level-loss"]
    assert "ln(100)" in finding.message


@pytest.mark.parametrize(("best", "names"), [(0.0001, {"chance-level-loss"}), (0.3, set())])
def test_a_score_that_stays_at_zero_is_reported(tmp_path: Path, best: float, names: set[str]) -> None:
    """A model whose score never leaves zero has learned next to nothing, whatever its loss does."""
    assert set(found(tmp_path, loss=DECAY, val_f1=best * np.clip(STEPS / 500 - 0.2, 0, 1))) == names


def test_a_validation_accuracy_at_chance_with_a_huge_loss(tmp_path: Path) -> None:
    """The training succeeds and nothing carries over: the labels of the validation may not fit."""
    test = {"val_loss": 8.0 * NOISE, "val_acc": 0.1 + 0.004 * np.log(NOISE)}
    assert "chance-level-loss" in found(tmp_path, loss=DECAY, **test)
    assert found(tmp_path, loss=DECAY, val_loss=0.9 * NOISE, val_acc=0.1 + test["val_acc"]) == {}


LOSSES = {"task_loss": 0.7 * (1 + 0.8 * STEPS / N) * NOISE, "aux_loss": DECAY}


def test_competing_losses_do_not_excuse_a_run_without_any_score(tmp_path: Path) -> None:
    """A loss that nearly doubles while the accuracy stays at zero is divergence, also beside another loss."""
    assert "divergence" not in found(tmp_path, **LOSSES, accuracy=0.5 + 0.3 * STEPS / N)
    assert found(tmp_path, **LOSSES, accuracy=0.004 * NOISE)["divergence"].tag == "task_loss"


def test_an_entropy_that_explodes_without_reward_is_divergence(tmp_path: Path) -> None:
    """A policy whose entropy grows by a multiple while it never earns a reward has lost its structure."""
    entropy = 1.4 * np.exp(STEPS / 200) * NOISE
    assert found(tmp_path, policy_loss=DECAY, entropy=entropy, reward=np.zeros(N))["divergence"].tag == "entropy"
    reward = np.random.default_rng(0).normal(5, 1, N)
    assert "divergence" not in found(tmp_path, policy_loss=DECAY, entropy=entropy, reward=reward)
