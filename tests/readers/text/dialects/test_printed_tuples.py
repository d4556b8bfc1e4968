"""Rows that a print of Python 2 leaves of several arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.readers.text.dialects.printed_tuples import PrintedTuples
from postmortem.readers.text.lines.prefixes import Prefix
from postmortem.readers.text.records.record import Record, Row

if TYPE_CHECKING:
    from pathlib import Path


def parsed(text: str) -> Record | None:
    return PrintedTuples().parse(Row(text, Prefix()))


def test_lists_of_arrays_behind_their_epoch(tmp_path: Path) -> None:
    rows = ["('Training data: ', (6000, 28, 28))", "('Number of batches: ', 46)"]
    for e in range(1, 13):
        loss = [f"[array({x / e:.4f}, dtype=float32), array({0.5 + e / 40:.3f}, dtype=float32)]" for x in (2, 3)]
        rows += [f"('Epoch: ', {e})", f"('gan loss: ', {loss[0]}, '\\t critic loss', {loss[1]})"]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    run = postmortem.load(tmp_path)
    assert run.series("gan loss").index.tolist() == list(range(1, 13))
    assert run.series("critic loss").iloc[:2].tolist() == [3.0, 1.5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("('loss:', 0.5, 'acc', nan)", ["loss", "acc"]),
        ('("loss", np.float32(0.5))', ["loss"]),
        ("('shape', (3, 4))", None),
        ("('a', 'b')", None),
        ("('loss', 0.5) and more", None),
    ],
)
def test_texts_name_the_numbers_after_them(text: str, expected: list[str] | None) -> None:
    record = parsed(text)
    assert (record and [v.tag for v in record.values]) == expected


@given(st.text("('\"loss:\\ ,)[]0.5nan", max_size=120))
def test_any_row_is_read_or_left(text: str) -> None:
    record = parsed(f"('{text}', 0.5)")
    assert record is None or isinstance(record, Record)
