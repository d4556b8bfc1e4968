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


def announcing(
    folder: Path, words: str | dict[int, str], columns: dict[str, np.ndarray], stride: int = 10
) -> dict[str, str]:
    """The gravest severity of each finding of a log that prints these columns, and `words` before row 300."""
    lines = {300: words} if isinstance(words, str) else words
    with (folder / "train.log").open("w") as log:
        for i in range(N):
            if i in lines:
                log.write(lines[i] + "\n")
            row = " ".join(f"{name} {values[i]:.4f}" for name, values in columns.items())
            log.write(f"step {i * stride} {row}\n")
    [run] = postmortem.scan(folder).runs
    found: dict[str, str] = {}
    for finding in run.findings:
        order = ("info", "warning", "error")
        found[finding.name] = max(finding.severity, found.get(finding.name, "info"), key=order.index)
    return found


HIGHER = DECAY + 0.6 * STEP
PHASES = [
    "=== Phase 2: fine-tuning ===",
    "Stage 2/3",
    "Switching to task B",
    "Starting curriculum level 3",
    "Increasing sequence length to 2048",
    "seq_len=2048",
    "Resolution 64 -> 128",
    "Progressive growing: stage 3",
    "Lesson changed. Now in lesson 3",
    "--->No mosaic aug now!",
    "Closing dataloader mosaic",
    "Starting adversarial training",
]


@pytest.mark.parametrize("words", PHASES)
def test_a_new_phase_in_words_explains_a_new_level(tmp_path: Path, words: str) -> None:
    """A loss that begins again from its first level where the log announces a new phase is no failure."""
    assert announcing(tmp_path, words, {"loss": noisy(AGAIN)}) == {"loss-spike": "info"}


@pytest.mark.parametrize("words", ["Saving checkpoint 3", "Stage 3: evaluation", "Switching to eval mode"])
def test_other_words_explain_nothing(tmp_path: Path, words: str) -> None:
    """A line that announces no phase of the training excuses nothing; the loss comes back to its level in the end."""
    assert announcing(tmp_path, words, {"loss": noisy(AGAIN)})["loss-spike"] == "warning"


@pytest.mark.parametrize(
    ("words", "loss", "severity"),
    [
        ("Unfreezing backbone", HIGHER, "info"),
        ("Begin SWA", HIGHER, "info"),
        ("Unfreezing backbone", DECAY + 2 * STEP, "error"),
        ("Warmup finished", HIGHER, "error"),
        ("=== Phase 2 ===", DECAY + 40 * STEP, "error"),
    ],
)
def test_what_an_announcement_may_cost(tmp_path: Path, words: str, loss: np.ndarray, severity: str) -> None:
    """Unfrozen layers may cost less than half of what was learned, the end of a warm-up nothing, no phase a multiple of
    the first loss."""
    assert announcing(tmp_path, words, {"loss": noisy(loss)})["loss-spike"] == severity


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("throughput-drop", {"loss": noisy(DECAY), "step_time": noisy(0.2 * (1 + 2 * STEP), 3)}),
        ("gradient-spike", {"loss": noisy(DECAY), "grad_norm": noisy(np.where(abs(STEPS - 301) < 2, 30, 1.0), 4)}),
        ("gradient-explosion", {"loss": noisy(DECAY), "grad_norm": noisy(1 + 11 * STEP, 4)}),
        ("lr-jump", {"loss": noisy(DECAY), "lr": 1e-3 * (1 + 9 * STEP)}),
    ],
)
def test_other_changes_where_layers_are_unfrozen(tmp_path: Path, name: str, columns: dict[str, np.ndarray]) -> None:
    """Time, gradient norm and learning rate may change with the layers that are trained, and 150 rows later not."""
    (tmp_path / "there").mkdir()
    assert announcing(tmp_path / "there", "Unfreezing backbone", columns) == {name: "info"}
    (tmp_path / "early").mkdir()
    assert announcing(tmp_path / "early", {150: "Unfreezing backbone"}, columns)[name] in ("warning", "error")


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(np.where(STEPS >= 300, np.nan, DECAY), id="NaN"),
        pytest.param(DECAY + 1.2 * np.clip((STEPS - 400) / 100, 0, 1), id="later"),
        pytest.param(DECAY + 1.2 * np.clip((STEPS - 220) / 100, 0, 1), id="before"),
        pytest.param(DECAY * np.exp(6 * np.clip((STEPS - 300) / 250, 0, 1)), id="explosion"),
    ],
)
def test_a_phase_in_words_excuses_no_failure(tmp_path: Path, loss: np.ndarray) -> None:
    """NaN, an explosion, and a rise that begins well before or after the announcement stay failures."""
    assert "error" in announcing(tmp_path, "=== Phase 2: fine-tuning ===", {"loss": noisy(loss)}).values()


def test_a_message_of_every_epoch_is_no_new_phase(tmp_path: Path) -> None:
    """What is printed again and again announces no change, nor does a line that the program printed when it started."""
    (tmp_path / "often").mkdir()
    often = dict.fromkeys(range(60, N, 60), "Stage 1: training")
    assert announcing(tmp_path / "often", often, {"loss": noisy(AGAIN)})["loss-spike"] == "warning"
    (tmp_path / "again").mkdir()
    again = dict.fromkeys((0, 300), "max_seq_len: 512")
    assert announcing(tmp_path / "again", again, {"loss": noisy(AGAIN)})["loss-spike"] == "warning"


def test_the_finding_quotes_the_announcement(tmp_path: Path) -> None:
    """The finding names the words and their place; the event has the step that they name."""
    (tmp_path / "there").mkdir()
    announcing(tmp_path / "there", "### Step 3000: switching to task B ###", {"loss": noisy(AGAIN)})
    [run] = postmortem.scan(tmp_path / "there").runs
    [event] = [e for e in run.events if e.kind == "new-phase"]
    assert event.step == 3000
    assert '"Step 3000: switching to task B" at step 3000' in run.findings[0].message


def test_a_phase_in_words_excuses_no_training_that_guesses_from_then_on(tmp_path: Path) -> None:
    """A new task may cost all that was learned, but a training goes on from there: it does not stay at ln(10)."""
    calm = noisy(np.ones(N)) ** 0.05
    late = STEPS >= 300
    columns = {
        "loss": (np.where(late, np.log(10), np.interp(STEPS, [0, 250], [np.log(10), 0.2]))) * calm,
        "accuracy": (np.where(late, 0.1, np.interp(STEPS, [0, 250], [0.1, 0.95]))) * calm,
    }
    found = announcing(tmp_path, "=== stage 2 ===", columns)
    assert found.pop("chance-level-loss") == "warning"
    assert found
    assert set(found.values()) <= {"warning", "error"}


def test_a_part_of_the_loss_that_is_switched_on_explains_a_new_level(tmp_path: Path) -> None:
    """It was exactly 0 before; the total rises with it."""
    part = STEP * noisy(np.full(N, 1.5), 1)
    columns = {"total_loss": noisy(DECAY) + part, "loss_fit": noisy(DECAY), "loss_consistency": part}
    assert "error" not in severities(tmp_path, **columns).values()


def test_a_part_of_the_loss_that_was_used_before_explains_nothing(tmp_path: Path) -> None:
    """The same jump of a part that was small, not switched off."""
    part = noisy(np.where(STEP > 0, 1.5, 0.01), 1)
    columns = {"total_loss": noisy(DECAY) + part, "loss_fit": noisy(DECAY), "loss_consistency": part}
    assert "error" in severities(tmp_path, **columns).values()


@pytest.mark.parametrize(
    ("tag", "severity"), [("curriculum", "info"), ("task_difficulty", "info"), ("n_seen_files", "error")]
)
def test_a_loss_that_rises_with_a_count_of_what_gets_harder_is_info(tmp_path: Path, tag: str, severity: str) -> None:
    """A task that gets harder bit by bit may begin with next to no loss; a number that only counts explains nothing."""
    loss = 0.0002 + 0.027 * STEPS / N
    assert severities(tmp_path, loss=noisy(loss), **{tag: STEPS * 4})["divergence"] == severity


def test_a_loss_that_explodes_at_once_is_an_error_beside_a_curriculum(tmp_path: Path) -> None:
    """A curriculum explains a slow rise, no fast one."""
    loss = np.where(STEPS < 300, 0.2, 0.2 * np.exp(np.minimum((STEPS - 300) / 5, 6)))
    assert severities(tmp_path, loss=noisy(loss), curriculum=STEPS * 4)["divergence"] == "error"
