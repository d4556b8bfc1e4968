"""Values that are printed ahead of the row that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.run import Run


def _run(tmp_path: Path, rows: list[str]) -> Run:
    path = tmp_path / "train.log"
    path.write_text("\n".join(rows) + "\n")
    return postmortem.load(path)


def test_a_rate_above_each_epoch_belongs_to_it(tmp_path: Path) -> None:
    """None is lost, and each stands at the epoch or step of the row below."""
    for row in ("epoch={e}/12, total_loss={loss:.3f}", "step {e} loss {loss:.3f}"):
        rows = [line for e in range(12) for line in (f"lr: {1e-3 / (e + 1):.6f}", row.format(e=e, loss=2 / (e + 1)))]
        run = _run(tmp_path, rows)
        assert run.series("lr").index.tolist() == list(range(12))
        assert run.series("lr").iloc[0] == 0.001


def test_an_evaluation_before_the_training_is_no_value_ahead(tmp_path: Path) -> None:
    """There is one after the last epoch too, so each belongs to the epoch above it."""
    rows = ["Test accuracy: 0.1"]
    rows += [
        line for e in range(1, 9) for line in (f"epoch={e}/8, loss={2 / e:.3f}", f"Test accuracy: {0.1 * e + 0.05:.3f}")
    ]
    run = _run(tmp_path, rows)
    assert run.series("Test accuracy").loc[8] == 0.85


def test_states_of_bars_that_start_again_place_no_values(tmp_path: Path) -> None:
    """The epoch, which the rows name, does: the bars count the batches of each, and those of the evaluation."""
    rows: list[str] = []
    for e in range(1, 5):
        rows += [f"{n * 10:3d}%|###       | {n}/10 [00:0{n % 10}<00:09,  1.0it/s]" for n in range(11)]
        rows += [f"Epoch [{e}/4], Average Loss: {2 / e:.3f}"]
        rows += [f"{n * 33:3d}%|###       | {n}/3 [00:0{n}<00:02,  1.0it/s]" for n in range(4)]
        rows += [f"Validation Accuracy: {0.2 * e:.2f}"]
    run = _run(tmp_path, rows)
    assert run.series("Average Loss").index.tolist() == [1, 2, 3, 4]
    assert run.series("Validation Accuracy").index.tolist() == [1, 2, 3, 4]


def test_a_best_model_that_repeats_the_value_of_its_epoch(tmp_path: Path) -> None:
    """It is no point of its own, and takes the series off the axis of epochs no more than the others."""
    rows: list[str] = []
    for e in range(1, 9):
        rows += [f"Epoch {e} | Batch {n}/40 | Loss: {3 / (e + n / 40):.4f}" for n in range(10, 41, 10)]
        rows += [f"saved the best model, val loss: {2 / e:.4f}"] if e % 2 else []
        rows += [f"Epoch {e} done | train loss: {3 / e:.4f} | val loss: {2 / e:.4f}"]
    run = _run(tmp_path, rows)
    assert "val loss" in run.by_epoch
    assert run.series("val loss").index.tolist() == list(range(1, 9))
