"""What of a settings file could not be read: shared by those for JSON and for YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_LEVELS = 50


class NotUnderstood(Exception):
    """A file that is not used; the message says why."""


class Losses:
    """The names of settings of which a value was dropped while a file was read, dotted in YAML."""

    def __init__(self) -> None:
        self.python_objects: list[str] = []
        self.tagged: list[tuple[str, str]] = []  # name, tag
        self.repeated: list[str] = []

    def problems(self, path: str) -> Iterator[Problem]:
        """One Problem for each reason. The files are in order and nothing of the training's data is lost with them."""
        others = "the other settings"
        if names := self.python_objects:
            what = f"values that are not plain data (Python objects), not read: {listed(names)}"
            yield Problem(path=path, what=what, kept=others, kind="settings")
        if names := [name for name, _ in self.tagged]:
            tags = list(dict.fromkeys(tag for _, tag in self.tagged))
            what = f"values with an unknown tag ({listed(tags)}), not read: {listed(names)}"
            yield Problem(path=path, what=what, kept=others, kind="settings")
        if names := list(dict.fromkeys(self.repeated)):
            what, kept = f"duplicate keys: {listed(names)}", "the last value of each key"
            yield Problem(path=path, what=what, kept=kept, kind="settings")


def listed(names: list[str]) -> str:
    """The first names, for a message."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
