"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in (ROOT / "postmortem").rglob("*.py")
    if ">>> " in file.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name, monkeypatch):
    """Each example of a module, run in the repository's root."""
    monkeypatch.chdir(ROOT)
    done = doctest.testmod(import_module(name), optionflags=OPTIONS)
    assert done.attempted, "the module quotes examples, and none was found"
    assert done.failed == 0
