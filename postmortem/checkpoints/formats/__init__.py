"""Checkpoint formats: one file per format in which training code saves its state.

A format is a subclass of `CheckpointFormat` registered by ``@checkpoint_format`` in its own module; other packages add
theirs through the entry-point group ``postmortem.checkpoint_formats``. Modules here import torch inside functions only:
a scan uses them to recognise file names where torch is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from postmortem.checkpoints.formats.shared.pieces import Pieces


class CheckpointFormat:
    """Base of all formats. The class docstring describes the format and names its source."""

    name: ClassVar[str]
    priority: ClassVar[int] = 50
    """Formats are asked in this order, lowest first."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Endings of file names, in lower case, that a scan takes for saved weights."""

    @staticmethod
    def is_folder(names: Collection[str]) -> bool:
        """Whether a folder that holds files of these names is one checkpoint of this format."""
        return False

    @staticmethod
    def claims(path: Path) -> bool:
        """Whether the file or folder `path` is of this format, by its name and first bytes. May raise OSError."""
        raise NotImplementedError

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Pieces:
        """The place of each tensor in the file; the weights themselves are not read.

        `trust` allows unpickling everything. May raise any exception for damaged content; what was found before a
        truncation is returned with a Problem.
        """
        raise NotImplementedError

    @staticmethod
    def read(path: Path, *, trust: bool) -> Any:
        """The saved content, tensors on the CPU. `trust` and exceptions as in `pieces`."""
        raise NotImplementedError

    @staticmethod
    def verify(path: Path) -> None:
        """Compares the checksums that `pieces` counted in `Pieces.unverified`. Raises ValueError if one is wrong."""


FORMATS: Registry[type[CheckpointFormat]] = Registry(
    "postmortem.checkpoints.formats",
    key=lambda f: f.name,
    order=lambda f: f.priority,
    noun="checkpoint format",
    group="postmortem.checkpoint_formats",
)
checkpoint_format = FORMATS.register


def format_of(path: Path) -> type[CheckpointFormat] | None:
    """The first format that claims `path`; None for a plain folder of files. Raises OSError if it cannot be opened.

    A format that raises something else is a fault of a plugin, and the next one is asked.
    """
    lost = "the checkpoints that only this format reads"
    asked = ((f, FORMATS.call(f, "claims", path, default=False, path=path, lost=lost, raises=OSError)) for f in FORMATS)
    return next((f for f, claims in asked if claims), None)


def weight_suffixes() -> tuple[str, ...]:
    """The endings of file names that any format takes for saved weights."""
    return tuple(suffix for f in FORMATS for suffix in f.suffixes)
