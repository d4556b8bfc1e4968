"""The pages of docs/ that are written from the code are what the code says today."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")  # which the pages of fixes need

DOCS = Path(__file__).parent.parent / "docs"
PAGES = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    """`make docs` would change nothing."""
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run `make docs` and look at the difference"


def test_every_page_is_in_the_list() -> None:
    """docs/README.md links each page of the folder."""
    listed = (DOCS / "README.md").read_text("utf-8")
    pages = [page.name for page in DOCS.glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in listed] == []


def test_every_field_of_the_json_has_a_description() -> None:
    """The page of the output formats has no empty cell."""
    rows = [line for line in (DOCS / "output.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == []
