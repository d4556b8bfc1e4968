"""Numbers of one name that are in no order of time have no trend."""

from __future__ import annotations

from pathlib import Path

import postmortem


def _alarms(tmp_path: Path, rows: list[str]) -> list[str]:
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    return [f.name for f in postmortem.scan(tmp_path).runs[0].findings if f.severity != "info"]


def test_a_table_of_several_models_after_the_training(tmp_path: Path) -> None:
    """The errors of four models on three sets are no divergence at the last epoch."""
    rows = [f"Epoch {e}/21 train loss: {2 / e:.4f}" for e in range(1, 22)]
    errors = "0.0123 0.0114 0.0095 0.0027 0.0049 0.0021 0.0054 0.0041 0.0033 0.0070 0.0124 0.0072 0.0342 0.0244 0.0253"
    for k, error in enumerate(errors.split()):
        rows += [f"Set {k // 3}:"] if k % 3 == 0 else []
        rows += [f"    {('CNN', 'ViT', 'UNet')[k % 3]:<20} MSE={error}  MAE=0.0{4 + k % 3}32  R2=-0.{k}1"]
    assert not _alarms(tmp_path, rows)


def test_errors_of_different_data_without_a_step(tmp_path: Path) -> None:
    """The row of one kind of data is a thousandfold that of the other: no spike of a training."""
    rows = []
    for n in range(60):
        scores = (5000.0, 0.4) if n in (40, 41) else (1.6, 0.4)
        rows += [
            f"Metrics of {k}: {{'mape': {m + n % 7 / 50}, 'rmse': {90 + n % 5}}}"
            for k, m in zip("ab", scores, strict=True)
        ]
    assert not _alarms(tmp_path, rows)


def test_a_table_that_several_programs_write_at_once(tmp_path: Path) -> None:
    """Each has its own steps and its own level of the loss: the order of the rows is no training."""
    rows = ["step,loss"]
    for i in range(40):
        for of, level in ((0, 0.02), (1, 0.06), (2, 0.01)) if i < 25 else ((1, 0.06),):
            rows.append(f"{100 * (i + 10 - 3 * of)},{level * (1 + i % 5 / 50):.5f}")
    (tmp_path / "losses.csv").write_text("\n".join(rows) + "\n")
    (run,) = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.severity != "info"] == []


def test_a_training_that_begins_again_in_a_log_with_epochs_and_steps(tmp_path: Path) -> None:
    """The mean of epoch 1 after that of epoch 14 is no spike: the second start logs the steps of its epochs as well."""
    mean = "[Train] epoch:{e}, total:{loss:.6f}"
    rows = [mean.format(e=e, loss=0.06 + 0.4 / e) for e in range(1, 15)]
    for e in range(1, 41):
        rows += [f"[epoch:{e} iter:{i}] PDE:{0.1 / (e + i / 450):.6f}" for i in range(50, 451, 50)]
        rows.append(mean.format(e=e, loss=0.05 + 0.7 / e))
    assert not _alarms(tmp_path, rows)
