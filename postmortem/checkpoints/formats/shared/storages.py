"""Reads the structure of a file written by torch.save, with its tensors on the meta device: no weights are loaded."""

from __future__ import annotations

import math
import warnings
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import _weights_only_unpickler as restricted

from postmortem.checkpoints.formats.shared.pieces import Piece, Pieces
from postmortem.checkpoints.formats.shared.restricted_pickle import (
    LONGEST_PICKLE,
    WHOLE,
    Pickle,
    Trusting,
    safe_globals,
)
from postmortem.checkpoints.formats.shared.zip_records import Part, check_sums, data_offset
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DEEPEST = 64  # levels of containers in containers; no training state has so many
_OVERLAP = 16  # tensors may share bytes (tied weights, views), but together they are at most this many times the file
_RUNS = 2**14  # contiguous runs that the views of one file may consist of, together


class Storages:
    """Replaces the storages of a pickle: meta storages, each with the key of its record."""

    def __init__(self) -> None:
        self.made: dict[str, torch.TypedStorage] = {}
        self.itemsize: dict[str, int] = {}

    def load(self, saved_id: tuple[Any, ...]) -> Any:
        """The `persistent_load` of an unpickler."""
        _, kind, key, _, numel, *_ = saved_id
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        if str(key) not in self.made:
            size = self.itemsize[str(key)] = dtype.itemsize
            untyped = torch.UntypedStorage(int(numel) * size, device="meta")  # type: ignore[no-untyped-call]
            made = torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
            self.made[str(key)] = made
        return self.made[str(key)]

    def places(self, offsets: dict[str, int]) -> dict[int, int]:
        """The offset in the file of each storage, by its `_cdata`; `offsets` has them by key."""
        return {s._untyped_storage._cdata: offsets[key] for key, s in self.made.items() if key in offsets}


def unpickle(f: Pickle, storages: Storages, trust: bool = False) -> Any:
    """The next pickle in `f`, by torch's restricted unpickler; with `trust` by one that imports everything."""
    unpickler: Any = Trusting(f, encoding="utf-8") if trust else restricted.Unpickler(f, encoding="utf-8")
    unpickler.persistent_load = storages.load
    if not trust:
        f.guards(unpickler)
    with safe_globals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols: the error reports what cannot be read
        return unpickler.load()


def structure_of_zip(f: BinaryIO, base: int, size: int, trust: bool = False) -> tuple[Any, dict[int, int], int]:
    """Content with tensors on meta, storage -> offset, and the bytes whose checksums were not compared, of the zip
    archive in f[base : base + size]."""
    part = Part(f, base, size)
    storages, offsets = Storages(), {}
    with zipfile.ZipFile(part) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records:
            raise ValueError("a zip archive without data.pkl: not a torch checkpoint")
        if records["data.pkl"].compress_type != zipfile.ZIP_STORED:  # a few bytes could unpack to gigabytes
            raise ValueError("record data.pkl is compressed: not a torch checkpoint")
        with archive.open(records["data.pkl"]) as record:
            content = unpickle(Pickle(record.read(LONGEST_PICKLE + 1)), storages, trust)
        unverified = check_sums(archive, part)
        for name, info in records.items():
            if name.startswith("data/"):
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"record {name} is compressed: not a torch checkpoint")
                offsets[name[5:]] = base + data_offset(part, info)
    missing = [key for key in storages.made if key not in offsets]
    if missing:
        raise ValueError(f"record data/{missing[0]} is missing")
    part.seek(0)
    strict: Any = torch._C.PyTorchFileReader  # torch.load uses it; Python's reader accepts more files
    strict(part).get_all_records()
    return content, storages.places(offsets), unverified


def pieces_of(path: Path, content: Any, places: dict[int, int], unverified: int = 0) -> Pieces:
    """The pieces of the tensors in `content`, whose storages lie at `places` in the file `path`.

    Raises ValueError if the tensors claim far more bytes than the file has.
    """
    size = path.stat().st_size
    held = Pieces(content, unverified=unverified)
    claimed: dict[tuple[int, int], None] = {}
    left = _RUNS
    for name, t in tensors_in_state(content):
        place = places.get(t.untyped_storage()._cdata)
        if place is None:
            continue
        item = t.element_size()
        runs = _runs(t, left)
        left -= len(runs) - 1
        for start, count in runs:
            shape, part = (tuple(t.shape), ()) if len(runs) == 1 else ((count,), (start,))
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


def _runs(t: torch.Tensor, most: int) -> list[tuple[int, int]]:
    """(first number, count) of each contiguous run of a tensor in its storage.

    Views such as `w[:, :8]` may have many, with gaps that are not part of the view; a view of more than `most` runs is
    read from its first to its last element.
    """
    if not t.numel():
        return [(int(t.storage_offset()), 0)]
    dims = sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1 and s)
    run = 1
    while dims and dims[0][0] == run:
        run *= dims.pop(0)[1]
    starts = [int(t.storage_offset())]
    if math.prod(n for _, n in dims) > max(most, 1):
        return [(starts[0], run + sum((n - 1) * s for s, n in dims))]
    for stride, count in reversed(dims):
        starts = [start + i * stride for start in starts for i in range(count)]
    return [(start, run) for start in starts]


def tensors_in_state(content: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of the tensors in nested containers.

    A container that occurs several times counts at the first: a pickle of a hundred bytes can hold a list that contains
    itself, or 2^60 paths.
    """
    seen: set[int] = set()
    waiting = [(where, content)]
    while waiting:
        path, value = waiting.pop()
        value = value.state_dict() if isinstance(value, WHOLE) else value
        if isinstance(value, torch.Tensor):
            if value.is_sparse:
                value = value._values()  # values() refuses a tensor that is not coalesced
            elif value.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
                value = value.values()
            yield ".".join(path), value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen and len(path) < _DEEPEST:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += reversed([((*path, str(key)), inner) for key, inner in items])
