"""The files of a run, and single files while their run is determined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postmortem.readers import Reader, content_of
from postmortem.runs.file_names import run_key

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a run: its reader, a prefix for its tags, its rank if the name shows it, its stream."""

    path: Path
    reader: type[Reader]
    prefix: str = ""
    rank: int = -1
    stream: str = ""


@dataclass(slots=True)
class RunFiles:
    """The files of one run, in the order in which they were written."""

    name: str
    path: Path
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class ClaimedFile:
    """A file that a reader claims, while its run is searched for.

    `home` is the folder of its run; `key` distinguishes the runs of one folder, empty if there is only one.
    """

    path: Path
    reader: type[Reader]
    home: Path
    key: str = ""
    prefix: str = ""
    rank: int = -1
    placed: bool = False
    """Whether its path alone says which run it belongs to."""
    attempt: int = -1
    """The number of the start of its job in its name, where the starts are one run."""

    @property
    def content(self) -> Content:
        """What the file holds, as its reader says."""
        return content_of(self.reader)

    @property
    def is_output(self) -> bool:
        """Whether the file is what a program printed: it joins the run whose numbers are in the same folder."""
        return self.content == "output"

    @property
    def run(self) -> tuple[Path, str]:
        """What files of one run have in common: the folder, and the name within it."""
        return self.home, self.key

    @property
    def name_of_run(self) -> str:
        """The part of the file name that would name its run."""
        return run_key(self.path, table=self.content == "table")
