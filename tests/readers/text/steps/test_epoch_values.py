"""Values that stand at an epoch in a log that else counts steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.core.run import Run

EPOCHS, LENGTH = 12, 40


def _log(end: Callable[[int], str], *, batch: str = "Epoch {e} [{n}/40] Loss {loss:.4f}", head: str = "") -> str:
    """Rows of batches, and what `end` prints after each epoch."""
    lines = []
    for e in range(1, EPOCHS + 1):
        lines += [head.format(e=e)] if head else []
        lines += [batch.format(e=e, n=n, loss=3 / (e + n / LENGTH)) for n in range(10, LENGTH + 1, 10)]
        lines.append(end(e))
    return "\n".join(lines) + "\n"


def _run(tmp_path: Path, text: str) -> Run:
    path = tmp_path / "train.log"
    path.write_text(text)
    return postmortem.load(path)


def _steps(run: Run, tag: str) -> list[int]:
    return [int(step) for step in run.frame[run.frame.tag == tag].step]


FORMS: dict[str, tuple[str, str]] = {
    "named in the row": (_log(lambda e: f"Epoch {e}: val_loss {2 / e:.4f}, val_acc {0.5 + e / 40:.3f}"), "val_loss"),
    "named in the heading above": (
        _log(lambda e: f"Results - Epoch: {e}\nval_loss {2 / e:.4f}\tval_acc {0.5 + e / 40:.3f}"),
        "val_loss",
    ),
    "named before its batches": (_log(lambda e: f"avg. test_loss {2 / e:.4f}", head="Epoch {e}"), "avg. test_loss"),
    "an evaluation that counts its batches": (
        _log(
            lambda e: f"2026-11-20 12:06:00 - mmdet - INFO - Epoch(val) [{e}][196]\tloss: {2 / e:.4f}",
            batch="2026-11-20 12:06:00 - mmdet - INFO - Epoch [{e}][{n}/40]\tlr: 1.0e-01, loss: {loss:.4f}",
        ),
        "val loss",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_values_of_an_epoch_stand_at_the_epoch(tmp_path: Path, form: str) -> None:
    """The log prints the epoch beside them and no step: nothing else is named in table, series and `by_epoch`."""
    text, tag = FORMS[form]
    run = _run(tmp_path, text)
    assert _steps(run, tag) == list(range(1, EPOCHS + 1))
    assert run.series(tag).index.tolist() == list(range(1, EPOCHS + 1))
    assert tag in run.by_epoch
    loss = next(t for t, role in run.roles.items() if role == "loss")
    assert _steps(run, loss) == list(range(10, LENGTH * EPOCHS + 1, 10))
    assert loss not in run.by_epoch


def test_several_values_under_one_heading_keep_the_steps_between_which_they_are_printed(tmp_path: Path) -> None:
    """An evaluation every 20 batches, below a heading of the epoch, is told apart by the steps before it."""
    lines = []
    for e in range(1, EPOCHS + 1):
        lines.append(f"Epoch {e}")
        for n in (20, 40):
            lines += [f"step {(e - 1) * LENGTH + n} loss {3 / (e + n):.4f}", f"val_loss {2 / (e + n):.4f}"]
    run = _run(tmp_path, "\n".join(lines) + "\n")
    assert _steps(run, "val_loss") == list(range(20, LENGTH * EPOCHS + 1, 20))
    assert not run.by_epoch


def test_a_finding_names_the_epoch(tmp_path: Path) -> None:
    """Overfitting is judged against the training loss by order of lines, and told with epochs and their unit."""
    text = _log(lambda e: f"Epoch {e}: val_loss {1 + abs(e - 5) / 5:.4f}")
    (tmp_path / "train.log").write_text(text)
    [report] = postmortem.scan(tmp_path / "train.log").runs
    [finding] = [f for f in report.findings if f.name == "overfitting"]
    assert (finding.step, finding.end_step, finding.unit) == (5, 12, "epoch")
    assert "best at epoch 5 " in finding.message
    assert report.diagnosis is not None
    words = " ".join((report.diagnosis.summary, *report.diagnosis.next))
    assert "after epoch 5" in words
    assert "step 200" not in words, "the step at which the epoch ended is not printed"
    assert "at epoch 5" in " ".join(str(report).split())
    assert (report.first_step, report.last_step) == (10, 480)


def test_a_nan_in_a_value_of_an_epoch_leads_to_no_step(tmp_path: Path) -> None:
    """No command is told to go to a step that the log does not name."""
    text = _log(lambda e: f"Epoch {e}: val_loss {'nan' if e >= 7 else 2 / e}")
    (tmp_path / "train.log").write_text(text)
    [report] = postmortem.scan(tmp_path / "train.log").runs
    [finding] = [f for f in report.findings if f.name == "nan-onset"]
    assert (finding.step, finding.evidence["last_finite_step"], finding.unit) == (7, 6, "epoch")
    assert report.diagnosis is not None
    assert not any("--step" in action for action in report.diagnosis.next)


def test_a_log_of_epochs_only_says_so(tmp_path: Path) -> None:
    """Where nothing but epochs is printed, they are called epochs as well."""
    rows = [f"Epoch {e}/40 loss: {2 / e + (3 if e > 30 else 0):.4f}" for e in range(1, 41)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    [report] = postmortem.scan(tmp_path / "train.log").runs
    text = " ".join(str(report).split())
    assert "epochs 1 to 40" in text
    assert "at epoch 31" in text
    assert "step 31" not in text
    assert "last good epoch 30" in text


def test_a_restart_that_repeats_epochs_keeps_those_that_survive(tmp_path: Path) -> None:
    """The second attempt goes on at epoch 4: its values replace those of the first, epoch by epoch."""
    first = _log(lambda e: f"Epoch {e}: val_loss {2 / e:.4f}").split("Epoch 7 ")[0]
    second = "Epoch 4 [10/40]" + _log(lambda e: f"Epoch {e}: val_loss {1 / e:.4f}").split("Epoch 4 [10/40]")[1]
    run = _run(tmp_path, first + second)
    series = run.series("val_loss")
    assert series.index.tolist() == list(range(1, EPOCHS + 1))
    assert series.loc[3] == pytest.approx(0.6667)
    assert series.loc[5] == pytest.approx(0.2)


def test_a_bar_that_ends_with_the_rounded_number_of_the_row_is_its_repeat(tmp_path: Path) -> None:
    """The loss is that of the row, to all its digits and at its epoch, though only the bar counts batches."""
    text = "".join(
        f"epoch [{e}]: 100%|██████████| 29/29 [00:26<00:00,  1.08it/s, loss={2.34567 / e:.3g}]\n"
        f"2026-11-20 12:06:00,1 - epoch {e} - loss: {2.34567 / e:.4f} acc: {1 - 0.6 / e:.4f}\n"
        for e in range(1, EPOCHS + 1)
    )
    text += "".join(f"step {29 * e}: lr {1e-3 / e:.6f}\n" for e in range(1, 4))
    run = _run(tmp_path, text)
    assert _steps(run, "loss") == list(range(1, EPOCHS + 1))
    assert run.frame[run.frame.tag == "loss"].value.tolist()[0] == 2.3457


def test_an_epoch_that_tells_hardly_any_values_apart_places_none(tmp_path: Path) -> None:
    """Two lines for each batch, of which one names only the epoch: its values stand at the batch, in one long epoch."""
    text = "".join(
        f"epoch id: 0, batch step: {n}, g_loss: {3 / (n + 1):.6f}\nepoch0; g_loss:{3 / (n + 1)}; d_loss: {n / 7:.5f}\n"
        for n in range(60)
    )
    run = _run(tmp_path, text)
    assert _steps(run, "g_loss") == _steps(run, "d_loss") == list(range(60))


def test_bars_of_which_only_the_end_is_logged_place_nothing(tmp_path: Path) -> None:
    """Every value would be at the last batch; the headings above the bars number the epochs."""
    text = "".join(
        f"==> online epoch # {e} [batchSize = 128]\n [======= 390/390 ======>]  Tot: 1m2s | Step: 160ms\n"
        f"Train accuracy: {90 - 40 / e:.2f} %\t time: 62.10 s\n==> testing\nTest accuracy:\t{88 - 40 / e:.4f}\n"
        for e in range(1, EPOCHS + 1)
    )
    run = _run(tmp_path, text)
    assert run.step_axis == "epoch"
    assert _steps(run, "Train accuracy") == _steps(run, "Test accuracy") == list(range(1, EPOCHS + 1))
