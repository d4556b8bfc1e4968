"""Notes on changes are files that the release notes can be made of."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_note_has_a_type_and_a_text() -> None:
    """A note is called +WHAT.TYPE.md with a type of pyproject.toml; another name would be left out of the release
    notes."""
    types = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]["type"]
    known = {kind["directory"] for kind in types}
    notes = [file for file in (ROOT / "changelog.d").iterdir() if file.name != "README.md"]
    wrong = [
        n.name
        for n in notes
        if not n.name.startswith("+") or [n.suffix, n.stem.rpartition(".")[2] in known] != [".md", True]
    ]
    assert wrong == []
    assert [n.name for n in notes if not n.read_text("utf-8").strip()] == []
