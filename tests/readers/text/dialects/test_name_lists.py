"""Rows that print a list of names and then the list of their values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.readers.text.dialects.name_lists import NameLists
from postmortem.readers.text.lines.prefixes import Prefix
from postmortem.readers.text.records.record import Record, Row


def parsed(text: str) -> Record | None:
    return NameLists().parse(Row(text, Prefix()))


def test_names_and_values_are_paired_in_their_order(tmp_path: Path) -> None:
    rows = [f"Iter {i:<5d} [Avg. Loss, Loss] : [{2 / i:.4f}, {3 / i:.4f}]" for i in range(10, 310, 10)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    run = postmortem.load(tmp_path)
    by_tag = {tag: run.frame[run.frame.tag == tag] for tag in ("Avg. Loss", "Loss")}
    assert by_tag["Avg. Loss"].step.tolist() == by_tag["Loss"].step.tolist() == list(range(10, 310, 10))
    assert by_tag["Avg. Loss"].value.tolist()[:2] == [0.2, 0.1]
    assert by_tag["Loss"].value.tolist()[:2] == [0.3, 0.15]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Epoch 3 [Avg. Loss, Loss], [avg. ValLoss, ValLoss]: [0.5, nan] [0.7, 0.8], 0",
            [("Avg. Loss", 0.5), ("Loss", None), ("avg. ValLoss", 0.7), ("ValLoss", 0.8)],
        ),
        ("[Loss, Acc]: [0.5, 0.6, 0.7]", None),
        ("[Loss, Acc]: [0.5]", None),
        ("[a, b]: [1, 2]", None),
        ("[INFO]: [3/10] loss 2", None),
    ],
)
def test_only_as_many_values_as_names(text: str, expected: list[tuple[str, float | None]] | None) -> None:
    record = parsed(text)
    found = record and [(v.tag, v.number if v.number == v.number else None) for v in record.values]
    assert found == expected


@given(st.text("[], :=L-0.5nan a", max_size=200))
def test_any_row_is_read_or_left(text: str) -> None:
    record = parsed(text)
    assert record is None or record.values
