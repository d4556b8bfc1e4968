"""Sentences of diagnoses claim no more than the log shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import postmortem
from postmortem.core.model import Diagnosis

NOISE = np.random.default_rng(5).normal(0, 0.01, 400)


def _diagnosed(folder: Path, rows: list[str]) -> Diagnosis:
    (folder / "train.log").write_text("\n".join(rows) + "\n")
    [run] = postmortem.scan(folder).runs
    assert run.diagnosis is not None
    return run.diagnosis


def _row(step: int, loss: float | str | None = None) -> str:
    return f"step {step} loss {2 * 0.99**step + 0.5 + NOISE[step] if loss is None else loss}"


def test_an_evaluation_is_not_replayed(tmp_path: Path) -> None:
    """A replay reruns training steps, which are finite where only the evaluation is NaN."""
    rows = []
    for step in range(300):
        rows.append(_row(step))
        if step % 50 == 49:
            rows.append(f"step {step} eval_loss {'nan' if step == 149 else 1.1}")
    told = _diagnosed(tmp_path, rows)
    assert told.name == "evaluation-nan"
    assert not any("postmortem replay" in action for action in told.next)
    assert any("run the evaluation alone" in action for action in told.next)


def test_a_nan_after_an_infinity_was_not_there_before_it(tmp_path: Path) -> None:
    """The row of step 61 is infinite, so the NaN of step 62 began at that very step."""
    rows = [_row(step, {61: "inf"}.get(step, "nan" if step > 61 else None)) for step in range(100)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    [nan] = [f for f in run.findings if f.name == "nan-onset"]
    assert nan.step == 62
    assert "between" not in nan.evidence
    assert "and inf at step 61" in nan.message


def test_the_batch_of_a_sparse_log_is_one_of_several(tmp_path: Path) -> None:
    """Every tenth step is logged: the batch at fault is one of the ten, and no gradient norm is called stable."""
    told = _diagnosed(tmp_path, [_row(step, 90.0 if step == 250 else None) for step in range(0, 400, 10)])
    assert told.name == "bad-batch"
    assert "a batch of steps 241 to 250 may be at fault" in told.summary
    assert "loss stayed stable up to the previous row" in told.evidence_for
    assert not any("gradient" in text for text in told.evidence_for)


def test_a_nan_that_recovers_left_the_weights_intact(tmp_path: Path) -> None:
    """Later values are finite: weights that hold NaN would not allow that."""
    told = _diagnosed(tmp_path, [_row(step, "nan" if step == 70 else None) for step in range(150)])
    assert "the weights are likely intact" in told.summary


def test_a_replay_is_offered_for_the_interval_of_the_onset(tmp_path: Path) -> None:
    """The log of every tenth step shows an interval; the sentence with the command says so."""
    told = _diagnosed(tmp_path, [_row(step, "nan" if step >= 200 else None) for step in range(0, 300, 10)])
    [action] = [action for action in told.next if "postmortem run" in action]
    assert "can name the operation and the samples (the onset is in steps 191 to 200)" in action
    assert "--step" not in action


def test_a_rate_that_is_almost_zero_explains_the_plateau(tmp_path: Path) -> None:
    """The log shows why the loss stands still: the advice is about the schedule, not about frozen parameters."""
    rows = []
    for step in range(400):
        loss = 3 * 0.97 ** min(step, 60) + 0.5 + 0.3 * NOISE[step]
        rows.append(f"step {step} loss {loss:.5f} lr {1e-3 if step < 60 else 1e-7}")
    told = _diagnosed(tmp_path, rows)
    assert (told.name, told.strength) == ("dead-schedule", "likely")
    assert not any("require gradients" in action for action in told.next)


def test_a_value_at_a_step_is_the_logged_one(tmp_path: Path) -> None:
    """A gradient norm that peaks one step after its jump, and a loss whose level is a median: no value is put at a step
    where the log has another one."""
    norms = {200: 40.0, 201: 90.0}
    rows = [f"{_row(step)} grad_norm {norms.get(step, 1 + NOISE[step])}" for step in range(400)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    [spike] = [f for f in run.findings if f.name == "gradient-spike"]
    assert "to 40 at step 200 (peak 90 at step 201) and recovers" in spike.message
    told = _diagnosed(tmp_path, [_row(step, (1 + NOISE[step]) * 1.02 ** max(0, step - 250)) for step in range(400)])
    assert "rises from its level of " in told.summary
