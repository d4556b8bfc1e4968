"""Files of one run that are named after the metric or the split that they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

FALLING = [2 / (i + 1) + 0.01 for i in range(30)]


@pytest.mark.parametrize("form", ["{:.6f}", " {:.4e}\t", "{:.6f} {:.6f}"])
@pytest.mark.parametrize("suffix", [".txt", ".log", ".csv"])
def test_numbers_without_a_name_have_that_of_their_file(tmp_path: Path, form: str, suffix: str) -> None:
    """Two files of one run; their rows are counted."""
    for name, more in (("train_loss", 0.0), ("val_loss", 0.5)):
        rows = (form.format(v + more, v + more) + "\n" for v in FALLING)
        (tmp_path / (name + suffix)).write_text("".join(rows))
    run = postmortem.load(tmp_path)
    tags = [f"{name} {i}" for name in ("train_loss", "val_loss") for i in (1, 2)]
    tags = tags if form.count("{") == 2 else ["train_loss", "val_loss"]
    assert dict(run.roles) == {tag: "val_loss" if "val" in tag else "loss" for tag in tags}
    assert run.step_axis == "row"
    assert run.series(tags[0]).tolist() == [float(form.split()[0].format(v)) for v in FALLING]


@pytest.mark.parametrize(
    ("name", "head", "tags"),
    [
        ("train.log", "% mean class accuracy (train set)\t", ["mean class accuracy (train set)"]),
        ("log.txt", "training error\t", ["training error"]),
        ("numbers.txt", "", []),
        ("labels_accuracy.txt", None, []),
    ],
)
def test_the_one_line_of_text_may_name_the_column(tmp_path: Path, name: str, head: str | None, tags: list[str]) -> None:
    """As Torch7's logger writes it; whole numbers are labels, and a file of no known name is no log."""
    rows = [f" {v:.4e}\t" if head is not None else str(i % 3) for i, v in enumerate(FALLING)]
    (tmp_path / name).write_text("\n".join([*([head] if head else []), *rows]) + "\n")
    found = postmortem.scan(tmp_path, keep=True).runs
    assert [tag for run in found for tag in run.run.frame.tag.unique()] == tags


def test_logs_named_after_metrics_are_one_run(tmp_path: Path) -> None:
    """Beside them, another log is a run of its own."""
    (tmp_path / "loss.log").write_text("".join(f"step {i} loss: {v}\n" for i, v in enumerate(FALLING)))
    (tmp_path / "auc.log").write_text("".join(f"step {i} AUC: {1 - v / 4}\n" for i, v in enumerate(FALLING)))
    assert dict(postmortem.load(tmp_path).roles) == {"loss": "loss", "AUC": "accuracy"}
    (tmp_path / "other.log").write_text("".join(f"step {i} loss: {v}\n" for i, v in enumerate(FALLING)))
    assert len(postmortem.scan(tmp_path).runs) == 2


def test_tables_in_folders_of_splits_are_one_run(tmp_path: Path) -> None:
    """``train/metrics.jsonl`` beside ``eval/metrics.jsonl``; folders of other names are runs of their own."""
    for folder in ("a/train", "a/eval", "b/first", "b/second"):
        (tmp_path / folder).mkdir(parents=True)
        rows = (json.dumps({"step": 10 * i, "loss": v}) for i, v in enumerate(FALLING))
        (tmp_path / folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    runs = {run.name: run.run for run in postmortem.scan(tmp_path, keep=True).runs}
    assert set(runs) == {"a", "b/first", "b/second"}
    assert dict(runs["a"].roles) == {"train/loss": "loss", "eval/loss": "val_loss"}
