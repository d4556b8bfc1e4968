"""Evaluations whose rows have the names of the training's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path


def series(tmp_path: Path, text: str) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each tag of a log with this text."""
    log = tmp_path / "train.log"
    log.write_text(text)
    points = read_text(log).points
    found: dict[str, list[tuple[int, float]]] = {}
    for code, step, value in zip(points.code, points.step, points.value, strict=True):
        found.setdefault(points.tags[code], []).append((int(step), float(value)))
    return found


def test_what_an_estimator_saves_is_an_evaluation(tmp_path: Path) -> None:
    """Its loss has the name of the training's loss, and the step stands in the sentence before the names."""
    rows = []
    for step in range(0, 2001, 100):
        rows.append(f"INFO:tensorflow:loss = {2 - step / 2000:.4f}, step = {step} (0.301 sec)")
        if step % 1000 == 0 and step:
            rows.append(
                f"INFO:tensorflow:Saving dict for global step {step}: accuracy = 0.8125, global_step = {step}, "
                f"loss = {2.5 - step / 2000:.4f}"
            )
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert len(found["loss"]) == 21
    assert found["eval loss"] == [(1000, 2.0), (2000, 1.5)]
    assert found["eval accuracy"] == [(1000, 0.8125), (2000, 0.8125)]


@pytest.mark.parametrize("batches", [16, 47], ids=["of its own length", "of the training's length"])
@pytest.mark.parametrize("every", [10, 1000], ids=["many rows", "one row"])
def test_batches_below_a_heading_of_an_evaluation(tmp_path: Path, batches: int, every: int) -> None:
    """They count on their own, and the last row of a pass holds for all of it."""
    rows = []
    for epoch in range(1, 6):
        rows.append(f"Epoch {epoch}/5")
        rows += [
            f"step {n:2d}/47 - loss: {3 - epoch / 4 - n / 1000:.4f} - acc: 0.{epoch}500 - 9ms/step"
            for n in [*range(every, 47, every), 47]
        ]
        rows.append("Eval begin...")
        rows += [
            f"step {n:2d}/{batches} - loss: {4 - epoch / 4 - n / 1000:.4f} - acc: 0.{epoch}250 - 4ms/step"
            for n in [*range(every, batches, every), batches]
        ]
        rows.append("Eval samples: 512")
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert len(found["loss"]) == 5 * (5 if every == 10 else 1)
    assert [step for step, _ in found["loss"]] == sorted({step for step, _ in found["loss"]})
    assert found["Eval loss"] == [(47 * e, pytest.approx(4 - e / 4 - batches / 1000)) for e in range(1, 6)]
    assert [value for _, value in found["Eval acc"]] == [pytest.approx(e / 10 + 0.025) for e in range(1, 6)]


def test_a_heading_above_the_next_epoch_changes_nothing(tmp_path: Path) -> None:
    """The evaluation prints a sum only; the counter below it is that of the training."""
    rows = []
    for epoch in range(4):
        rows += [f"batch {n}/50 loss {2 - epoch / 4 - n / 100:.3f}" for n in (10, 20, 30, 40, 50)]
        rows += ["Validating...", "done in 3.1 s", f"val_loss: {2.2 - epoch / 4:.3f}"]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert len(found["loss"]) == 20
    assert len(found["val_loss"]) == 4


def test_the_counter_of_the_training_goes_on_below_a_heading(tmp_path: Path) -> None:
    """An evaluation in the middle of an epoch says nothing more."""
    rows = [f"step {n}/400 loss {3 - n / 200:.3f}" for n in range(10, 210, 10)]
    rows.insert(10, "Evaluating...")
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert found == {"loss": [(n, pytest.approx(3 - n / 200)) for n in range(10, 210, 10)]}


@pytest.mark.parametrize("word", ["eval metrics after step: {}, loss={}", "validation at step {}: loss={}"])
def test_a_step_behind_words_for_an_evaluation(tmp_path: Path, word: str) -> None:
    """MaxText names the step so."""
    rows = []
    for n in range(60):
        rows.append(f"completed step: {n}, seconds: 2.125, TFLOP/s/device: 151.2, loss: {9 - n / 10:.3f}")
        if n % 20 == 19:
            rows += ["Completed eval step 0", "Completed eval step 1", word.format(n, f"{9.5 - n / 10:.3f}")]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert len(found["loss"]) == 60
    assert [found[tag] for tag in found if tag.split()[0] in ("eval", "validation")] == [
        [(n, pytest.approx(9.5 - n / 10)) for n in (19, 39, 59)]
    ]
