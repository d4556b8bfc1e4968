"""What lies in the folders of a run, by one listing of each: a dozen names are asked for, and most are not there."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path


class NamesIn:
    """The names in folders, each listed once, while one run is put together.

    A folder that runs share (`shared`) may hold the files of thousands: it is not listed, and may hold anything.
    """

    def __init__(self, shared: Collection[Path] = ()) -> None:
        self._shared = {str(folder) for folder in shared}
        self._names: dict[str, frozenset[str] | None] = {}

    def may_hold(self, folder: Path | str, name: str) -> bool:
        """False if a folder surely holds nothing of this name; upper and lower case may be the same to its disk."""
        names = self._listed(str(folder))
        return names is None or name.lower() in names

    def may_end(self, folder: Path | str, endings: tuple[str, ...]) -> bool:
        """False if the name of nothing in a folder has one of these endings, which are in small letters."""
        names = self._listed(str(folder))
        return names is None or any(name.endswith(endings) for name in names)

    def _listed(self, folder: str) -> frozenset[str] | None:
        if folder not in self._names:
            self._names[folder] = None if folder in self._shared else _names(folder)
        return self._names[folder]


def lying_in(paths: Iterable[Path]) -> Counter[Path]:
    """How many of `paths` each folder is, or holds at any depth."""
    found = Counter(paths)
    for folder, count in Counter(path.parent for path in found.elements() if path.parent != path).items():
        for above in (folder, *folder.parents):
            found[above] += count
    return found


def _names(folder: str) -> frozenset[str] | None:
    try:
        return frozenset(name.lower() for name in os.listdir(folder))
    except OSError:
        return None
