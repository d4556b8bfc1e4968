"""Readers: one file per source, each turning one file into a `Reading`.

A reader is a class with the members of `Reader`, registered by ``@reader`` in its own module; other packages
add theirs through the entry-point group ``postmortem.readers``. Which files make a run is decided in
`_discover`; readers see one file at a time and never raise for its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.reading import Reading


class Reader(Protocol):
    """What a source needs. The class docstring describes the format, with its source."""

    kind: ClassVar[str]
    """The name of the source in frames and reports: tensorboard, wandb, text, csv, …"""
    priority: ClassVar[int]
    """Readers are asked in this order, lowest first; text, which takes anything readable, comes last."""

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """Whether this reader is for `path`, judging by its name and its first 4 KiB (`head`)."""

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the whole file. OSError where it cannot be opened; everything else becomes a Problem."""


READERS: Registry[type[Reader]] = Registry("postmortem.readers", key=lambda r: f"{r.priority:03d} {r.kind}")
reader = READERS.register
