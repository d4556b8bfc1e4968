"""Readers: one file or folder per source, each turning one file into a `Reading`.

A reader is a class with the members of `Reader`, registered by ``@reader`` in its own module; other packages
add theirs through the entry-point group ``postmortem.readers``. `postmortem.runs` decides which files make a run;
readers see one file at a time and never raise for its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.reading import Reading

Content = Literal["history", "events", "table", "snapshot", "output", "monitor"]
"""What the files of a reader hold, which decides how they are grouped into runs:

- ``history``: the numbers of one run, whose folder is the run;
- ``events``: one of many files that a process adds to its folder, which together are one stream;
- ``table``: rows of numbers; several tables with names of their own in one folder are several runs;
- ``snapshot``: all numbers up to a checkpoint; of several in a run only the newest is read;
- ``output``: what a program printed; it joins the run whose numbers are in the same folder;
- ``monitor``: what was measured of the machine; it joins the only run of its folder, and its numbers are not the run's.
"""


class Following(Protocol):
    """A file that is read again as it grows."""

    @property
    def size(self) -> int:
        """Bytes that were read."""

    def read(self) -> Reading:
        """As `Reader.read`. Called again after bytes were appended, it reads only these."""


class Reader(Protocol):
    """What a source needs. The class docstring describes the format, with its source.

    `content`, `other_files`, `home` and `runs` are optional; a reader without them gets the defaults below.
    """

    kind: ClassVar[str]
    """The name of the source in frames and reports: tensorboard, wandb, text, csv, …"""
    priority: ClassVar[int]
    """Readers are asked in this order, lowest first; text, which takes anything readable, comes last."""
    content: ClassVar[Content] = "history"
    """How its files are grouped into runs."""
    other_files: ClassVar[bool] = False
    """Whether `read` also opens files beside `path`; what it read is then not cached."""

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """Whether this reader is for `path`, judging by its name and its first 4 KiB (`head`).

        `head` starts after the NUL bytes that a truncated log begins with.
        """

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the whole file. OSError if it cannot be opened; everything else becomes a Problem."""

    @staticmethod
    def home(path: Path) -> Path | None:
        """The folder of the run that `path` belongs to; None if that is decided by the other files of the folder.

        Files with the same home are one run, which is named after that folder.
        """
        return None

    @staticmethod
    def runs(path: Path) -> list[Path] | None:
        """The runs in a file that holds several: a path below `path` for each, which `read` and `home` are given.

        None for a file that is, or is part of, one run; empty if it holds none, or cannot say which.
        """
        return None


def content_of(reader: type[Reader]) -> Content:
    """What the files of `reader` hold; the default where it does not say so."""
    return getattr(reader, "content", Reader.content)


READERS: Registry[type[Reader]] = Registry(
    "postmortem.readers", key=lambda r: r.kind, order=lambda r: r.priority, noun="reader"
)
reader = READERS.register
