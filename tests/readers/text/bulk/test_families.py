"""Families of rows and their variants: found by whole arrays as one by one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postmortem.readers.text import read_text
from postmortem.readers.text.bulk.families import Family, Usual
from postmortem.readers.text.bulk.rows import Rows
from postmortem.readers.text.bulk.templates import RowLayout
from postmortem.readers.text.lines.blocks import Lines
from postmortem.readers.text.lines.own_texts import OwnTexts

_SKELETONS = ("[rank0]: step 00", "[rank0]: loss.00", " 0%|#     | 0/00", " 0%|##    | 0/00", "é 00 shards: 000")
_LENGTH = len(_SKELETONS[0])


def _rows(lines: list[str], path: Path) -> Rows:
    path.write_bytes("".join(line + "\n" for line in lines).encode("latin-1"))
    (block,) = Lines(path)
    return Rows(block, OwnTexts())


@given(st.lists(st.tuples(st.sampled_from(_SKELETONS), st.integers(0, 9)), min_size=1, max_size=200))
def test_rows_are_of_the_family_that_their_bytes_show(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int]]
) -> None:
    """A row may be of one family only, by the words in which families differ, and is of it if nothing but digits
    differs."""
    lines = [skeleton.replace("0", str(digit)) for skeleton, digit in drawn]
    rows = _rows(lines, tmp_path_factory.mktemp("rows") / "train.log")
    usual = Usual(_LENGTH)
    for skeleton in _SKELETONS[:-1]:
        usual.note(Family(skeleton.encode("latin-1")), 1, 1)
    group = np.arange(len(lines))
    *told, others = usual.told_apart(rows, group)
    for family, skeleton, mine in zip(usual.families, _SKELETONS, told, strict=False):
        expected = [re.sub(r"\d", "0", line) == skeleton for line in lines]
        alike = family.alike(rows.words(group, _LENGTH))
        assert (np.ones(len(lines), bool) if alike is None else alike).tolist() == expected
        assert mine.tolist() == np.flatnonzero(expected).tolist()
    assert [drawn[i][0] for i in others] == [skeleton for skeleton, _ in drawn if skeleton == _SKELETONS[-1]]


def test_families_that_become_rare_are_forgotten() -> None:
    """What few rows are of is no longer tried first."""
    usual, family = Usual(_LENGTH), Family(_SKELETONS[0].encode())
    usual.note(family, 10, 100)
    assert usual.families == [family]
    usual.note(family, 1, 100)
    assert usual.families == []


def test_variants_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of eight ranks are read by columns at once, and each keeps its rank."""
    read = RowLayout.read
    calls = []
    monkeypatch.setattr(
        RowLayout, "read", lambda self, words, *other: [calls.append(len(words)), read(self, words, *other)][1]
    )
    path = tmp_path / "train.log"
    path.write_text("".join(f"[rank{i % 8}]: step {1000 + i}: loss 2.{i:04d}\n" for i in range(400)))
    fast, slow = read_text(path), read_text(path, fast=False)
    assert calls == [400]
    assert fast.points.rank.tolist() == slow.points.rank.tolist() == [i % 8 for i in range(400)]
    assert fast.points.value.tolist() == slow.points.value.tolist()
