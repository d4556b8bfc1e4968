"""``train.csv`` beside ``val.csv``: the split in the name of a table is told by its tags."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem

ROWS = [f"{epoch},{2 / (epoch + 1):.4f},{epoch / 40:.3f}" for epoch in range(30)]


@pytest.mark.parametrize(
    ("training", "held_out", "tags"),
    [
        ("train.csv", "val.csv", ("train", "val")),
        ("log_train.csv", "log_test.csv", ("train", "test")),
        ("Train-metrics.tsv", "Eval-metrics.tsv", ("train", "eval")),
    ],
)
def test_tables_of_two_splits(tmp_path: Path, training: str, held_out: str, tags: tuple[str, str]) -> None:
    """Their values are not mixed, and that of held-out data is known as such."""
    for name in (training, held_out):
        separator = "\t" if name.endswith(".tsv") else ","
        lines = ["epoch,loss,accuracy", *ROWS]
        (tmp_path / name).write_text("\n".join(lines).replace(",", separator) + "\n")
    run = postmortem.load(tmp_path)
    assert dict(run.roles) == {
        f"{tags[0]}/loss": "loss",
        f"{tags[0]}/accuracy": "accuracy",
        f"{tags[1]}/loss": "val_loss",
        f"{tags[1]}/accuracy": "val_accuracy",
    }
    assert len(run.frame) == 4 * len(ROWS)


def test_columns_that_name_the_split_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\n".join(["epoch,train_loss,lr", *ROWS]) + "\n")
    (tmp_path / "val.csv").write_text("\n".join(["epoch,val_loss,val_acc", *ROWS]) + "\n")
    assert set(postmortem.load(tmp_path).roles) == {"train_loss", "lr", "val_loss", "val_acc"}


def test_fewer_columns_of_held_out_data(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\n".join(["epoch,loss,lr", *ROWS]) + "\n")
    (tmp_path / "val.csv").write_text("\n".join(["epoch,loss", *(row.rpartition(",")[0] for row in ROWS)]) + "\n")
    assert set(postmortem.load(tmp_path).roles) == {"train/loss", "train/lr", "val/loss"}


def test_event_files_of_learn_and_test_are_one_run(tmp_path: Path) -> None:
    """As CatBoost leaves them, with the same curves in tables: one run, whose objective is known by its two splits."""
    for split, offset in (("learn", 0.0), ("test", 0.02)):
        rows = [f"{i}\t{1 / (i + 2) + offset:.6f}" for i in range(40)]
        (tmp_path / f"{split}_error.tsv").write_text("\n".join(["iter\tMultiClass", *rows]) + "\n")
    run = postmortem.load(tmp_path)
    assert dict(run.roles) == {"learn/MultiClass": "loss", "test/MultiClass": "val_loss"}
