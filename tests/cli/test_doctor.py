"""``postmortem doctor``: what is installed, which plugins there are, and which are broken."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from postmortem.cli.doctor import _EXTRAS, _NEEDED
from postmortem.core.registry import Broken
from postmortem.readers.text.dialects import DIALECTS


def test_it_looks_for_every_dependency():
    """The packages that it looks for are the dependencies of pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert sorted(_NEEDED) == sorted(re.split("[<>=]", text)[0] for text in project["dependencies"])


@pytest.mark.parametrize("kind", ["readers", "dialects", "checkpoint formats", "detectors", "diagnoses", "reporters"])
def test_plugins_of_every_kind_are_listed(postmortem, kind):
    """Each kind of plugin has a line with how many there are, and their names."""
    called = postmortem("doctor")
    assert called.code == 0
    assert re.search(rf"^{kind}: [1-9]\d* \(\w", called.out, re.M)


def test_what_is_missing_and_what_that_costs(postmortem, monkeypatch):
    """A package of an extra that is not there: what does not work without it, and how to get it, at the end."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0" if name in _EXTRAS else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    called = postmortem("doctor")
    assert called.code == 0  # scan works without it
    assert "  torch is not installed (optional)\n" in called.out
    last = called.out.splitlines()[-1]
    assert last.startswith("missing: torch: replay, run, check")
    assert last.endswith("pip install 'training-postmortem[replay]'")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    assert postmortem("doctor").out.endswith("nothing is missing\n")


def test_it_looks_for_every_extra():
    """The extras of pyproject.toml have the packages that it looks for."""
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, (extra, _) in _EXTRAS.items():
        assert any(re.split("[<>=\\[]", text)[0] == name for text in extras[extra]), name


def test_a_broken_plugin_is_named(postmortem, monkeypatch):
    """A plugin that did not load is named with the reason; the exit code is 2."""
    list(DIALECTS)
    monkeypatch.setattr(DIALECTS, "_broken", [Broken("torn = a_package.torn", "ImportError: no")])
    called = postmortem("doctor")
    assert called.code == 2
    assert "broken plugin (dialects): torn = a_package.torn: ImportError: no\n" in called.out
