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
