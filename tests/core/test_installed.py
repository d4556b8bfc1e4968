"""Plug-ins are found as `importlib.metadata` finds them, which is asked only where there may be some."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from postmortem.core import installed

POINTS = "[console_scripts]\nx = x:y\n\n[postmortem.readers]\ntally = tally:Tally\n"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What is remembered of the packages of this environment is forgotten before and after."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "python.zip"), str(tmp_path)])
    yield from _cleared()


def _cleared() -> Iterator[None]:
    for remembered in (installed.entry_points, installed.version, installed._folders):
        remembered.cache_clear()
    yield
    for remembered in (installed.entry_points, installed.version, installed._folders):
        remembered.cache_clear()


def _install(folder: Path, name: str, points: str | None) -> None:
    info = folder / name
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tally\nVersion: 1.2\n")
    if points is not None:
        (info / "entry_points.txt").write_text(points)


@pytest.mark.parametrize("name", ["tally-1.2.dist-info", "tally-1.2-py3.11.egg-info", "tally.egg-info"])
def test_a_plug_in_is_found(tmp_path: Path, name: str) -> None:
    """Whatever its folder of metadata is called."""
    _install(tmp_path, name, POINTS)
    found = {(e.name, e.group) for e in installed.entry_points()}
    assert found == {("x", "console_scripts"), ("tally", "postmortem.readers")}


def test_a_plug_in_in_an_archive_is_found(tmp_path: Path) -> None:
    """An archive on the path is not listed: `importlib.metadata` looks into it."""
    with zipfile.ZipFile(tmp_path / "python.zip", "w") as archive:
        archive.writestr("tally-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: tally\nVersion: 1.2\n")
        archive.writestr("tally-1.2.dist-info/entry_points.txt", POINTS)
    assert "postmortem.readers" in {e.group for e in installed.entry_points()}


def test_without_a_plug_in_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of other packages, and scripts that are called postmortem, are none of ours."""
    _install(tmp_path, "a-1.dist-info", None)
    _install(tmp_path, "b-1.dist-info", "[console_scripts]\npostmortem = postmortem.cli.main:main\n")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: pytest.fail("asked"))
    others = [f for f in sys.meta_path if f is not PathFinder and hasattr(f, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if f not in others])  # of other tests' packages
    assert installed.entry_points() == []


def test_versions_are_those_of_the_folders(tmp_path: Path) -> None:
    """Without importing a package; a package that only begins with the same word is another one."""
    _install(tmp_path, "torch-2.9.1+cpu.dist-info", None)
    _install(tmp_path, "torch_geometric-2.0.dist-info", None)
    _install(tmp_path, "numpy-2.1-py3.11.egg-info", None)
    assert [installed.version(p) for p in ("torch", "numpy", "pandas")] == ["2.9.1+cpu", "2.1-py3.11", ""]
