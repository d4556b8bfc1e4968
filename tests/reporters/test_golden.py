"""What each format writes of one and the same report, compared with a file in ``golden/``.

``REWRITE_GOLDEN=1 python -m pytest tests/reporters/test_golden.py`` writes the files anew; look at the difference
before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postmortem.core.report import Report
from postmortem.reporters import REPORTERS, RenderOptions

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("render", list(REPORTERS), ids=lambda r: r.name)
def test_a_format_writes_what_it_wrote_before(render, everything: Report) -> None:
    """A report with every feature is rendered byte for byte as in the file of the format."""
    file = GOLDEN / f"everything.{render.name}"
    text = render(everything, RenderOptions(width=100, verbose=True))
    if os.environ.get("REWRITE_GOLDEN"):
        file.write_text(text, "utf-8", newline="")
    assert file.exists(), f"no golden file for {render.name}: see the first lines of this test file"
    assert text == file.read_bytes().decode("utf-8")


def test_no_golden_file_without_its_format() -> None:
    """The golden file of a removed format must be removed."""
    assert {file.suffix[1:] for file in GOLDEN.iterdir()} == {r.name for r in REPORTERS}
