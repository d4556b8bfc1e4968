"""Bytes to rows: what the file does meanwhile."""

from __future__ import annotations

import re
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postmortem.readers.text import read_text
from postmortem.readers.text.lines import blocks
from postmortem.readers.text.lines.blocks import Lines

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Problem


def test_a_log_that_grows_while_it_is_read_has_an_end(tmp_path, monkeypatch):
    """Reading stops where the file ended when it was opened, however much is written meanwhile."""
    monkeypatch.setattr(blocks, "BLOCK", 64)
    path = tmp_path / "train.out"
    path.write_bytes(b"step 1 loss 0.5\n" * 20)
    read = 0
    for block in Lines(path):
        read += block.size
        with path.open("ab") as file:
            file.write(b"step 2 loss 0.4\n" * 20)
    assert read == 20 * 16


@given(st.lists(st.text("ab \r\n", max_size=90), max_size=30), st.integers(17, 200))
def test_blocks_are_the_file(tmp_path_factory, parts, size):
    """However long lines are and wherever blocks end, the rows of all blocks are those of the file, with their line."""
    data = "".join(parts).encode()
    path = tmp_path_factory.mktemp("log") / "train.out"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", size)
        patch.setattr(blocks, "_SPARE", b"\n" * 16)
        read = list(Lines(path))
    assert b"".join(block.data[: block.size] for block in read) == data
    assert [block.first_line for block in read] == [1 + data.count(b"\n", 0, block.offset) for block in read]
    rows = [row for block in read for row in re.split(rb"[\r\n]", block.data[: block.size].removesuffix(b"\n")) if row]
    assert rows == [row for row in re.split(rb"[\r\n]", data) if row]
    assert sum(len(block.end) for block in read) == len(re.findall(rb"[\r\n]", data)) + (
        data[-1:] not in (b"\n", b"\r", b"")
    )


def test_a_long_hole_needs_little_memory(tmp_path):
    """A log whose end never reached the disk: the positions of millions of NULs are not listed."""
    path = tmp_path / "train.log"
    path.write_bytes(b"step 1 loss 2\n" + bytes(48 << 20))
    tracemalloc.start()
    blocks_ = list(Lines(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert b"".join(block.data[: block.size] for block in blocks_) == b"step 1 loss 2\n\0"
    assert peak < 6 * (48 << 20)


FORMS = {
    "fixed": lambda i: f"step {i} loss {2 / (1 + i / 20):.4f} lr {1e-3 * (1 - i / 80):.3e}",
    "any width": lambda i: f"step {i} loss {2 / (1 + i / 21)!r}",
    "dated": lambda i: f"[2024-01-01 00:00:{i:02d}] iter {i}/60 | loss: {2 / (1 + i / 20):.6f} | grad_norm: {1.5:.3f}",
    "closed": lambda i: str({"loss": round(2 / (1 + i / 20), 4), "lr": 1e-4, "epoch": i / 10}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_last_line_that_is_cut_holds_no_wrong_number(form: str, tmp_path: Path) -> None:
    """Wherever the last line is cut, the numbers that are left are right, and the cut is said."""

    def read(text: str) -> tuple[dict[tuple[str, int], float], list[Problem]]:
        (tmp_path / "train.log").write_text(text)
        reading = read_text(tmp_path / "train.log")
        p = reading.points
        return {
            (p.tags[c], int(s)): float(v) for c, s, v in zip(p.code, p.step, p.value, strict=True)
        }, reading.problems

    text = "".join(FORMS[form](i) + "\n" for i in range(60))
    whole, problems = read(text)
    assert problems == []
    start = text.rindex("\n", 0, -1) + 1
    for cut in range(start + 1, len(text) - 1):
        values, problems = read(text[:cut])
        assert values.items() <= whole.items()
        assert any("truncated" in p.what for p in problems) or text[cut:].strip(" }") == ""
    values, problems = read(text[:-1])
    if form == "any width":
        assert (len(whole) - len(values), [p.lost for p in problems]) == (1, [""])
    else:
        assert (values, problems) == (whole, [])


@pytest.mark.parametrize("end", ["Training complete.", "done in 12.5", "Best accuracy: 93.4", "]" * 40])
def test_a_last_line_of_another_kind_is_whole(end: str, tmp_path: Path) -> None:
    """A last word without a line end is no damage."""
    (tmp_path / "train.log").write_text("".join(FORMS["fixed"](i) + "\n" for i in range(60)) + end)
    assert read_text(tmp_path / "train.log").problems == []
