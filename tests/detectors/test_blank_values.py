"""A loss that is null, empty or gone while the training goes on, and tables with empty cells by design."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import postmortem
from postmortem.detectors.blank_values import BlankValues
from tests.detectors.cases import N, fires, quiet

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]


@fires(BlankValues, step=200)
def a_loss_that_is_no_longer_logged(base):
    """The learning rate and the gradient norm go on."""
    return base | {"train/loss": (np.arange(200), base["train/loss"][:200])}


@quiet(BlankValues)
def another_loss_takes_over(base):
    """The second phase of the training has a loss of its own."""
    return base | {
        "train/loss": (np.arange(200), base["train/loss"][:200]),
        "train/finetune_loss": (np.arange(200, N), base["train/loss"][200:]),
    }


def loss(i: int) -> float:
    return 0.3 + 1 / (1 + i / 10)


def dense(blank: range | set[int], names: tuple[str, ...] = ("loss",)) -> list[Row]:
    """200 rows with loss, grad_norm and lr; the values of `names` are missing in the rows `blank`."""
    rows = [{"step": i, "loss": loss(i), "grad_norm": 1 + i % 7 / 10, "lr": 1e-3} for i in range(200)]
    return [row | dict.fromkeys(names) if i in blank else row for i, row in enumerate(rows)]


def lightning() -> list[Row]:
    """Rows of the training, of the learning rate and of the validation, each with its own cells."""
    rows: list[Row] = []
    for i in range(9, 400, 10):
        rows += [{"step": i, "lr-Adam": 1e-3}, {"step": i, "train_loss": loss(i)}]
        if i % 100 == 99:
            rows.append({"step": i, "epoch": i // 100, "val_loss": loss(i) + 0.1})
    return [*rows, {"step": 400, "test_loss": 0.4}]


def lightning_with_summaries() -> list[Row]:
    """A row of the training for almost every step, and at odd steps one with means over the epoch."""
    rows: list[Row] = []
    for i in range(300):
        rows.append({"step": 2 * i, "train_loss_step": loss(i)})
        if i in (17, 99, 201, 299):
            rows.append({"step": 2 * i + 1, "train_loss_epoch": loss(i), "val_loss": loss(i)})
    return rows


def every(n: int, name: str, start: int = 0) -> list[Row]:
    """200 rows in which `name` has a value from row `start` on in each n-th."""
    rows = dense(range(0))
    return [row | {name: row["loss"] if i % n == n - 1 and i >= start else None} for i, row in enumerate(rows)]


def as_csv(rows: list[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["" if row.get(name) is None else str(row[name]) for name in names] for row in rows]
    return "\n".join(",".join(line) for line in [names, *cells]) + "\n"


def write(folder: Path, rows: list[Row], kind: str) -> None:
    if kind == "csv":
        (folder / "metrics.csv").write_text(as_csv(rows))
    elif kind == "jsonl":
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json-records":
        (folder / "history.json").write_text(json.dumps(rows))
    elif kind == "json-columns":  # as pandas writes a frame: for each column its cells by the number of the row
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: {str(i): row.get(name) for i, row in enumerate(rows)} for name in names}
        (folder / "history.json").write_text(json.dumps(columns))
    else:
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows, "global_step": 200}))


KINDS = pytest.mark.parametrize("kind", ["csv", "jsonl", "trainer_state", "json-records", "json-columns"])


@KINDS
@pytest.mark.parametrize("names", [("loss",), ("loss", "grad_norm"), ("loss", "grad_norm", "lr")], ids="-".join)
def test_a_column_that_becomes_empty_is_no_healthy_run(names: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    """From step 100 on the loss is null, as encoders write NaN; the step column alone shows that rows go on."""
    write(tmp_path, dense(range(100, 200), names), kind)
    report = postmortem.scan(tmp_path)
    first = report.runs[0].findings[0]
    assert (report.runs[0].verdict, first.name, first.tag, first.step) == ("failed", "blank-values", "loss", 100)
    assert first.evidence["rows"] == 100
    assert "likely NaN" in first.message


@KINDS
def test_single_empty_values_are_named(kind: str, tmp_path: Path) -> None:
    """A loss that is null in one row has a value in all others: the run is suspect at this step."""
    write(tmp_path, dense({57}), kind)
    (run,) = postmortem.scan(tmp_path).runs
    assert (run.verdict, run.findings[0].name, run.findings[0].step) == ("suspect", "blank-values", 57)


@KINDS
def test_a_loss_that_is_never_there_is_named(kind: str, tmp_path: Path) -> None:
    """A loss that is null in all rows is no series, and yet the run is not healthy."""
    write(tmp_path, dense(range(200)), kind)
    (run,) = postmortem.scan(tmp_path).runs
    assert (run.verdict, [f.name for f in run.findings]) == ("suspect", ["blank-values"])


@KINDS
@pytest.mark.parametrize(
    "rows",
    [
        lightning(),
        lightning_with_summaries(),
        every(20, "val_loss"),
        every(20, "val_loss", start=100),
        every(2, "grad_norm"),
        [*dense(range(0)), {"step": 199, "eval_loss": 0.4}, {"step": 200, "train_loss": 0.5, "train_runtime": 9.0}],
        [{"epoch": e, "step": e, "loss": loss(e), "val_loss": loss(e) if e % 5 == 4 else None} for e in range(30)],
        [row if i % 20 != 19 else row | {"loss": None, "val_loss": loss(i)} for i, row in enumerate(dense(range(0)))],
        [row if i < 198 else row | {"loss": None} for i, row in enumerate(dense(range(0)))],
        [{"step": i, "fps": 200 + i % 3} | (row if i != 57 else {}) for i, row in enumerate(dense(range(0)))],
    ],
    ids=[
        "lightning",
        "summaries",
        "val",
        "val-late",
        "half",
        "trainer",
        "epochs",
        "no-loss-at-evaluation",
        "two-last-rows",
        "no-update-before-a-row",
    ],
)
def test_tables_with_empty_cells_by_design_are_healthy(rows: list[Row], kind: str, tmp_path: Path) -> None:
    """What is logged now and then is empty in between, up to the end."""
    write(tmp_path, rows, kind)
    (run,) = postmortem.scan(tmp_path).runs
    assert [f.message for f in run.findings if f.name == "blank-values"] == []


def test_a_literal_nan_is_a_number(tmp_path: Path) -> None:
    """NaN by name is a NaN and nothing else."""
    write(tmp_path, [row | ({"loss": math.nan} if i >= 100 else {}) for i, row in enumerate(dense(range(0)))], "csv")
    (run,) = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.severity == "error"] == ["nan-onset"]


def test_cells_that_cannot_be_read_are_not_blank(tmp_path: Path) -> None:
    """Where half a column has decimal commas, the values are lost, not NaN."""
    rows = [
        f"{i};{loss(i):.4f};0.001" if i < 60 else f"{i};{loss(i):.4f};0.001".replace(".", ",", 1) for i in range(120)
    ]
    (tmp_path / "metrics.csv").write_text("step;loss;lr\n" + "\n".join(rows) + "\n")
    (run,) = postmortem.scan(tmp_path).runs
    assert [finding.name for finding in run.findings] == ["corrupt-record"]
    assert "60 values of loss" in run.findings[0].message
