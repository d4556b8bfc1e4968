"""How much of a file a Problem says is damaged: the detectors of damage go by this, not by its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem.readers.csv_table import CsvTable
from postmortem.readers.shared.damage import Damage, problems_of
from postmortem.readers.shared.decode import leading_nul_problem, nul_problem
from postmortem.readers.shared.json_rows import bad_lines

STRETCHES = [
    (Damage(40, 60), "records"),
    (Damage(40, 60, zeros=True), "records"),
    (Damage(0, 60, zeros=True), "cut"),
    (Damage(90, 100, cut=True), "cut"),
]


@pytest.mark.parametrize(("stretch", "extent"), STRETCHES)
def test_a_stretch_of_a_binary_file(stretch: Damage, extent: str) -> None:
    """A file that goes on after it is not cut; one without a record was not read."""
    assert [p.extent for p in problems_of("a", "an event file", [stretch], records=3, size=100)] == [extent]
    if not stretch.cut:
        assert [p.extent for p in problems_of("a", "an event file", [stretch], records=0, size=100)] == ["file"]


def test_nul_bytes_in_a_text() -> None:
    """Few of them stand for a row; those before the text are what was cut off."""
    found = [nul_problem("a", count, 7, places=1, at_end=False).extent for count in (1, 200, 201)]
    assert found == ["row", "row", "records"]
    assert leading_nul_problem("a", 5000).extent == "cut"


def test_lines_that_are_no_json() -> None:
    """The last one is cut, one in between is damaged, and without any other nothing was read."""
    inside, last = bad_lines(Path(__file__), [5, 9], lines=9, rows=7)
    assert (inside.extent, last.extent) == ("records", "cut")
    assert [p.extent for p in bad_lines(Path(__file__), [1, 2], lines=2, rows=0)] == ["file"]


@pytest.mark.parametrize(
    ("text", "extents"),
    [("", ["file"]), ("step,loss\n1,2\n2\n3,4\n", ["records"]), ("step,loss\n1,2.125\n2,1.125\n3", ["cut"])],
    ids=["empty", "a cell is missing", "cut"],
)
def test_a_table(tmp_path: Path, text: str, extents: list[str]) -> None:
    """An empty one, one with a short line, and one that ends in a line."""
    (tmp_path / "metrics.csv").write_text(text)
    assert [p.extent for p in CsvTable.read(tmp_path / "metrics.csv").problems] == extents
