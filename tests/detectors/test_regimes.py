"""Schedules that a log announces explain the changes that come with them, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

N = 600
STEPS = np.arange(N)
DECAY = 0.3 + 2.0 * np.exp(-STEPS / 60)


def noisy(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """`values` with 8 % of noise, as a loss has."""
    return values * np.exp(0.08 * np.random.default_rng(seed).standard_normal(len(values)))


def severities(folder: Path, **columns: np.ndarray) -> dict[str, str]:
    """The gravest severity of each finding of a run with these columns."""
    names = ["step", *columns]
    rows = (",".join(str(v) for v in row) for row in zip(STEPS, *columns.values(), strict=True))
    (folder / "metrics.csv").write_text(",".join(names) + "\n" + "\n".join(rows) + "\n")
    [run] = postmortem.scan(folder).runs
    order = ("info", "warning", "error")
    found: dict[str, str] = {}
    for finding in run.findings:
        found[finding.name] = max(finding.severity, found.get(finding.name, "info"), key=order.index)
    return found


RAMP = np.clip((STEPS - 200) / 200, 0, 1)
STEP = (STEPS >= 300).astype(float)
CLIMB = DECAY + 1.2 * RAMP
AGAIN = 0.3 + 2.0 * np.exp(-np.where(STEPS < 300, STEPS, STEPS - 300) / 40)


@pytest.mark.parametrize("tag", ["beta", "train/eps", "adv_weight", "curriculum/noise_level", "lambda_grl"])
def test_a_loss_that_rises_with_a_weight_is_info(tmp_path: Path, tag: str) -> None:
    """A loss that rises at the pace of a logged schedule is no failure, whatever the schedule's name."""
    assert severities(tmp_path, loss=noisy(CLIMB), **{tag: RAMP}) == {"divergence": "info"}


@pytest.mark.parametrize("tag", ["task", "data/domain_id", "phase", "resolution", "unfrozen_layers"])
def test_a_jump_at_a_new_task_is_info(tmp_path: Path, tag: str) -> None:
    """A jump of the loss where a logged constant changes is no failure."""
    assert severities(tmp_path, loss=noisy(AGAIN), **{tag: 1 + STEP}) == {"loss-spike": "info"}


@pytest.mark.parametrize(
    "tag",
    ["global_step_2", "tokens_seen", "best_epoch", "skipped_batches", "gpu_clock_mhz", "weight_decay", "momentum"],
)
def test_what_is_no_schedule_excuses_nothing(tmp_path: Path, tag: str) -> None:
    """Counters, hardware, settings of the optimizer and traces of a fault have the shape of a schedule and are none."""
    assert severities(tmp_path, loss=noisy(CLIMB), **{tag: RAMP})["divergence"] == "error"


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(DECAY + 1.2 * np.clip((STEPS - 450) / 100, 0, 1), id="later"),
        pytest.param(DECAY + 40 * RAMP, id="far above the first level"),
        pytest.param(DECAY + 1.2 * np.clip((STEPS - 200) / 400, 0, 1), id="and goes on after the schedule"),
    ],
)
def test_a_rise_that_does_not_fit_the_schedule_stays_a_failure(tmp_path: Path, loss: np.ndarray) -> None:
    """A schedule explains only what fits it in time and in size."""
    assert severities(tmp_path, loss=noisy(loss), beta=RAMP)["divergence"] == "error"


def test_a_measured_series_is_no_schedule(tmp_path: Path) -> None:
    """A series with noise is measured: it may rise because of the same fault."""
    assert severities(tmp_path, loss=noisy(CLIMB), feature_std=noisy(1 + RAMP, 1))["divergence"] == "error"


def test_a_jump_away_from_the_new_task_stays(tmp_path: Path) -> None:
    """A spike 60 steps after the change of the task is not explained by it."""
    loss = noisy(DECAY)
    loss[400:403] *= 12
    assert severities(tmp_path, loss=loss, task=(STEPS >= 340).astype(int))["loss-spike"] == "warning"


def test_slower_steps_at_a_new_resolution_are_info(tmp_path: Path) -> None:
    """Steps that take longer from the step on at which the resolution changes are no slowdown to look into."""
    seconds = noisy(0.2 * (1 + 2 * STEP), 2)
    assert severities(tmp_path, loss=noisy(DECAY), step_time=seconds, resolution=64 * (1 + STEP)) == {
        "throughput-drop": "info"
    }


def test_growing_images_are_no_stall_of_the_loader(tmp_path: Path) -> None:
    """Steps that take 4 and then 16 times as long, with images of twice the size each time, wait for no data."""
    size = 32 * (1 + STEP) * (1 + (STEPS >= 450))
    assert "dataloader-stall" not in severities(
        tmp_path, loss=noisy(DECAY), step_time=noisy((size / 200) ** 2), size=size
    )


def test_a_nan_at_a_new_task_stays_a_failure(tmp_path: Path) -> None:
    """No schedule explains a NaN."""
    assert severities(tmp_path, loss=np.where(STEPS >= 300, np.nan, DECAY), task=STEP)["nan-onset"] == "error"


def test_a_staircase_and_a_ramp_over_the_whole_run(tmp_path: Path) -> None:
    """Schedules with many small steps, or that change all the time, explain a rise that follows them."""
    stairs = np.minimum(STEPS // 60, 8) / 8
    assert severities(tmp_path, loss=noisy(0.4 * DECAY + 0.6 * stairs), sigma=stairs)["divergence"] == "info"
    slow = STEPS / N
    assert severities(tmp_path, loss=noisy(0.4 * DECAY + 0.8 * slow), aug_magnitude=slow)["divergence"] == "info"
