"""The versions that the package says it works with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _version(text: str) -> tuple[int, ...]:
    numbers = [int(n) for n in text.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def test_oldest_versions_are_the_bounds() -> None:
    """constraints-oldest.txt, for `make test-oldest`, pins each dependency to its lower bound in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["plot"], *extras["replay"], *extras["parquet"], *extras["zstd"]]
    bounds = dict(re.fullmatch(r"([\w.-]+)>=([\d.]+)", text).groups() for text in needed)
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {name: _version(v) for name, v in pinned.items()} == {name: _version(v) for name, v in bounds.items()}
