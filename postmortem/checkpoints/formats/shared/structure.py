"""The structure of a file written by torch.save: which tensors it holds, and where their bytes lie.

No weights are loaded. Torch is imported only for content that is more than tensors and plain data, and to say what is
wrong with a file.
"""

from __future__ import annotations

import math
import sys
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from postmortem.checkpoints.formats.shared.pieces import Piece, Pieces
from postmortem.checkpoints.formats.shared.plain_pickle import PlainStorages, SavedTensor
from postmortem.checkpoints.formats.shared.restricted_pickle import LONGEST_PICKLE, Pickle
from postmortem.checkpoints.formats.shared.zip_records import Part, check_sums, data_offset
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Mapping
    from pathlib import Path

_DEEPEST = 64  # levels of containers in containers; no training state has so many
_OVERLAP = 16  # tensors may share bytes (tied weights, views), but together they are at most this many times the file
_RUNS = 2**14  # contiguous runs that the views of one file may consist of, together


class _Storages(Protocol):
    """The storages that a pickle names, and how the pickle and its archive are read."""

    @property
    def keys(self) -> Collection[str]:
        """The keys of the storages."""

    def unpickle(self, f: Pickle, *, trust: bool = False) -> Any:
        """The next pickle in `f`."""

    def places(self, offsets: dict[str, int]) -> Mapping[Hashable, int]:
        """The offset of each storage, by `SavedTensor.storage`; `offsets` has them by key."""

    def check_records(self, archive: zipfile.ZipFile, part: Part) -> None:
        """Raises an exception if torch would not read the archive."""


def structure_of_zip(f: BinaryIO, base: int, size: int, trust: bool = False) -> tuple[Any, Mapping[Hashable, int], int]:
    """Content without the numbers of its tensors, the offset of each storage, and the bytes whose checksums were not
    compared, of the zip archive in f[base : base + size]."""
    if not trust:
        try:
            return _structure(f, base, size, PlainStorages())
        except Exception:  # noqa: BLE001 - damaged, or not plain: torch reads it, and says what is wrong
            f.seek(0)
    from postmortem.checkpoints.formats.shared.storages import Storages

    return _structure(f, base, size, Storages(), trust)


def _structure(
    f: BinaryIO, base: int, size: int, storages: _Storages, trust: bool = False
) -> tuple[Any, Mapping[Hashable, int], int]:
    part, offsets = Part(f, base, size), {}
    with zipfile.ZipFile(part) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records:
            raise ValueError("a zip archive without data.pkl: not a torch checkpoint")
        if records["data.pkl"].compress_type != zipfile.ZIP_STORED:  # a few bytes could unpack to gigabytes
            raise ValueError("record data.pkl is compressed: not a torch checkpoint")
        with archive.open(records["data.pkl"]) as record:
            content = storages.unpickle(Pickle(record.read(LONGEST_PICKLE + 1)), trust=trust)
        unverified = check_sums(archive, part)
        for name, info in records.items():
            if name.startswith("data/"):
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"record {name} is compressed: not a torch checkpoint")
                offsets[name[5:]] = base + data_offset(part, info)
        missing = [key for key in storages.keys if key not in offsets]
        if missing:
            raise ValueError(f"record data/{missing[0]} is missing")
        storages.check_records(archive, part)
    return content, storages.places(offsets), unverified


def pieces_of(path: Path, content: Any, places: Mapping[Hashable, int], unverified: int = 0) -> Pieces:
    """The pieces of the tensors in `content`, whose storages lie at `places` in the file `path`.

    Raises ValueError if the tensors claim far more bytes than the file has.
    """
    size = path.stat().st_size
    held = Pieces(content, unverified=unverified)
    claimed: dict[tuple[int, int], None] = {}
    left = _RUNS
    for name, t in tensors_in_state(content):
        place = places.get(t.storage)
        if place is None:
            continue
        item = t.dtype.itemsize
        runs = _runs(t, left)
        left -= len(runs) - 1
        for start, count in runs:
            shape, part = (t.shape, ()) if len(runs) == 1 else ((count,), (start,))
            piece = Piece(name, shape, t.dtype, path, place + start * item, count * item, part)
            if piece.offset + piece.nbytes > size:
                what = f"truncated: {name} needs bytes up to {piece.offset + piece.nbytes}, the file has {size}"
                problem = Problem(path=str(path), offset=size, what=what, lost="the tensors after this point")
                return Pieces(None, held.pieces, problems=[problem], unverified=unverified)
            claimed[piece.offset, piece.nbytes] = None
            held.pieces.append(piece)
    if (total := sum(nbytes for _, nbytes in claimed)) > _OVERLAP * size:
        raise ValueError(f"its tensors overlap: they claim {total} bytes of a file of {size}")
    return held


def _runs(t: SavedTensor, most: int) -> list[tuple[int, int]]:
    """(first number, count) of each contiguous run of a tensor in its storage.

    Views such as `w[:, :8]` may have many, with gaps that are not part of the view; a view of more than `most` runs is
    read from its first to its last element.
    """
    if not math.prod(t.shape):
        return [(t.offset, 0)]
    dims = sorted((s, n) for s, n in zip(t.stride, t.shape, strict=True) if n > 1 and s)
    run = 1
    while dims and dims[0][0] == run:
        run *= dims.pop(0)[1]
    starts = [t.offset]
    if math.prod(n for _, n in dims) > max(most, 1):
        return [(starts[0], run + sum((n - 1) * s for s, n in dims))]
    for stride, count in reversed(dims):
        starts = [start + i * stride for start in starts for i in range(count)]
    return [(start, run) for start in starts]


def tensors_in_state(content: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, SavedTensor]]:
    """(path, tensor) of the tensors in nested containers.

    A container that occurs several times counts at the first: a pickle of a hundred bytes can hold a list that contains
    itself, or 2^60 paths.
    """
    seen: set[int] = set()
    waiting = [(where, content)]
    while waiting:
        path, value = waiting.pop()
        if "torch" in sys.modules:  # else none of its objects is in `content`
            value = _without_torch(value)
        if isinstance(value, SavedTensor):
            yield ".".join(path), value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen and len(path) < _DEEPEST:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += reversed([((*path, str(key)), inner) for key, inner in items])


def _without_torch(value: Any) -> Any:
    """A tensor on the meta device as a `SavedTensor`, a whole model or optimizer as its state, others unchanged."""
    from postmortem.checkpoints.formats.shared.storages import saved

    return saved(value)
