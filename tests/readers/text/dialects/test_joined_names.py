"""Rows that print several names and then as many values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.readers.text.dialects.joined_names import JoinedNames
from postmortem.readers.text.lines.prefixes import Prefix
from postmortem.readers.text.records.record import Record, Row

if TYPE_CHECKING:
    from pathlib import Path


def parsed(text: str) -> Record | None:
    return JoinedNames().parse(Row(text, Prefix()))


def test_each_name_has_its_own_values(tmp_path: Path) -> None:
    rows = [f"Epoch {e}  IS, FID: {1 + e / 10:.3f}, {300 / e:.3f}" for e in range(1, 31)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    run = postmortem.load(tmp_path)
    assert run.series("FID").index.tolist() == list(range(1, 31))
    assert run.series("FID").iloc[[0, -1]].tolist() == [300.0, 10.0]
    assert run.series("IS").iloc[0] == 1.1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss/acc: 0.5/0.8", [("loss", 0.5), ("acc", 0.8)]),
        ("P/R/F1 = 0.9 / 0.8 / 0.85", [("P", 0.9), ("R", 0.8), ("F1", 0.85)]),
        ("train/loss, val/loss: 0.5, 0.6", [("train/loss", 0.5), ("val/loss", 0.6)]),
        (
            "Epoch 3 train loss/acc: 0.50/0.8, val loss/acc: 0.6/0.7",
            [("train loss", 0.5), ("train acc", 0.8), ("val loss", 0.6), ("val acc", 0.7)],
        ),
        ("train/loss: 0.5, val/loss: 0.6", None),
        ("loss/acc: 0.5/0.8/0.9", None),
        ("loss, acc: 0.5", None),
        ("done/total: 3/10", None),
        ("saved model, acc: 0.5, 0.6", None),
        ("Epoch, loss: 3.0, 0.5", None),
    ],
)
def test_as_many_values_as_names(text: str, expected: list[tuple[str, float]] | None) -> None:
    record = parsed(text)
    assert (record and [(v.tag, v.number) for v in record.values]) == expected


@given(st.text("lossacc/, :=-.05nan 1e", max_size=120))
def test_any_row_is_read_or_left(text: str) -> None:
    record = parsed(text)
    assert record is None or record.values
