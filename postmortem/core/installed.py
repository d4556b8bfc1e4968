"""Which packages are installed beside this one: their entry points and versions.

`importlib.metadata` loads email, socket, csv and zipfile and reads every package, which takes longer than reading most
runs. Here the folders of metadata are listed, and it is asked only where one of them names a group of ours.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_METADATA = (".dist-info", ".egg-info")
_OURS = b"[postmortem."
"""How the section of a group of ours begins in an `entry_points.txt`."""


@cache
def entry_points() -> list[EntryPoint]:
    """The entry points of all groups; an empty list where no package has one in a group of ours."""
    if not _has_plugins():
        return []
    import importlib.metadata

    found = importlib.metadata.entry_points()
    return [entry for group in found.groups for entry in found.select(group=group)]


@cache
def version(package: str) -> str:
    """The version of a package as its folder of metadata is named, "" if it is not installed. It is not imported."""
    head = f"{package}-"
    for _, name in _folders():
        if name.startswith(head):
            return name.removeprefix(head).removesuffix(".dist-info").removesuffix(".egg-info")
    return ""


def _has_plugins() -> bool:
    if _has_others():
        return True
    for folder, name in _folders():
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                if _OURS in file.read():
                    return True
        except OSError:  # it has none
            continue
    return False


def _has_others() -> bool:
    """Whether packages may be installed in another way than in plain folders: archives, eggs, finders of their own."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    return any(os.path.isfile(path) or path.lower().endswith(".egg") for path in sys.path)


@cache
def _folders() -> list[tuple[str, str]]:
    """(folder on the path, name of a folder of metadata in it)."""
    found = []
    for folder in sys.path:
        try:
            found += [(folder, name) for name in os.listdir(folder or ".") if name.lower().endswith(_METADATA)]
        except OSError:  # python311.zip, which need not exist
            continue
    return found
