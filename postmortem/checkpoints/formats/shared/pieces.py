"""Where the tensors of a checkpoint lie in its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.formats.shared.dtypes import Dtype, dtype_of

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Problem

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or the chunk of a sharded one that begins at index `start`.

    It is `nbytes` bytes of `dtype` from byte `offset` of the file `path`. The dtype may be given as torch has it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    path: Path
    offset: int
    nbytes: int
    start: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_of(self.dtype))


@dataclass(slots=True)
class Pieces:
    """What one format found in one file or folder.

    `content` is the saved structure without the numbers of its tensors (`SavedTensor`, or tensors on the meta device),
    or None; `step` the step that the format itself records; `stamps` the state of each file when it was opened.
    """

    content: Any = None
    pieces: list[Piece] = field(default_factory=list)
    step: int | None = None
    problems: list[Problem] = field(default_factory=list)
    stamps: dict[Path, Stamp] = field(default_factory=dict)
    unverified: int = 0
    """Bytes whose checksums the file holds and that were not compared, as `CheckpointFormat.verify` would."""


def stamp_of(path: Path) -> Stamp:
    """Inode, size in bytes and modification time in ns, which tell two states of a file apart; None if it is gone."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
