"""Where every tensor of a checkpoint lies in its files, found without reading the weights.

Formats. Zip (torch >= 1.6): ``data.pkl`` holds the structure, ``data/<key>`` the bytes of each storage, uncompressed. Legacy: four
pickles (magic number, protocol, system, structure), the storage keys, then for each key its length (int64) and bytes.
safetensors: a length (uint64), a JSON header with offsets, the bytes. Pickles are read with torch's own restricted
unpickler, storages standing on the meta device, so nothing of a file is run and nothing large is loaded.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import _weights_only_unpickler as restricted

from postmortem.core.model import Problem
from postmortem.readers._checkpoints import is_weights
from postmortem.replay import dcp
from postmortem.replay.saved import shards_named, step_in_content
from postmortem.replay.unpickling import UnreadableCheckpoint, is_zip, safe_globals, why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CRC_LIMIT = 64 * 2**20  # checksums are verified in files up to this size; in larger ones that would double the time
_SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    **{name: getattr(torch, dtype) for name, dtype in (("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")) if hasattr(torch, dtype)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or a chunk of a sharded one that begins at index `start`: `nbytes` bytes of `dtype` from `offset` on in `path`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    path: Path
    offset: int
    nbytes: int
    start: tuple[int, ...] = ()


@dataclass(slots=True)
class Layout:
    """The pieces of a checkpoint, the step it says, and the parts of it that cannot be read."""

    pieces: list[Piece] = field(default_factory=list)
    step: int | None = None
    problems: list[Problem] = field(default_factory=list)


def layout(path: Path) -> Layout:
    """The layout of a checkpoint, file or folder. Damage is in `problems`; nothing is raised for content."""
    found = Layout()
    contents: dict[str, Any] = {}
    if dcp.is_dcp(path):
        found.step = _guarded(found, path, lambda: _dcp(path, found))
        return found
    files = sorted(p for p in path.rglob("*") if p.is_file() and is_weights(p.name)) if path.is_dir() else [path]
    files += _missing_shards(path, files, found) if path.is_dir() else []
    for file in files:
        prefix = "" if len(files) == 1 or file.suffix == ".safetensors" else file.name.partition(".")[0] + "."
        contents[file.stem] = _guarded(found, file, lambda file=file, prefix=prefix: _file(file, prefix, found))
    if not found.pieces and not found.problems:
        found.problems.append(Problem(path=str(path), what="no saved weights in this folder" if path.is_dir() else "no tensors in it"))
    if path.is_dir():
        for extra in sorted(path.glob("*.json")):
            contents.setdefault(extra.stem, _json(extra))
    found.step = step_in_content(contents if path.is_dir() else next(iter(contents.values()), None), path)
    return found


def _guarded(found: Layout, path: Path, read: Any) -> Any:
    try:
        return read()
    except UnreadableCheckpoint as error:
        found.problems.append(error.problem)
    except Exception as error:  # noqa: BLE001 - a damaged file can make the unpickler raise anything
        found.problems.append(Problem(path=str(path), what=why_unreadable(path, error), lost="the file"))
    return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="replace")) if path.stat().st_size < 64 * 2**20 else None
    except (OSError, ValueError, RecursionError):
        return None  # says no step then; `read_saved` reports it where it matters


def _missing_shards(folder: Path, files: list[Path], found: Layout) -> list[Path]:
    for index in folder.glob("*.index.json"):
        named = set(shards_named(_json(index)))
        there = {f.name for f in files}
        found.problems += [
            Problem(path=str(folder / n), what=f"missing: {index.name} names this file", lost="its weights") for n in sorted(named - there)
        ]
    return []


def _file(path: Path, prefix: str, found: Layout) -> Any:
    if path.stat().st_size == 0:
        raise EOFError
    if path.suffix == ".safetensors":
        return _safetensors(path, prefix, found)
    with path.open("rb") as f:
        content, places = _zip(f, 0, path.stat().st_size) if is_zip(path) else _legacy(f)
    size = path.stat().st_size
    for name, t in _tensors(content, ()):
        place = places.get(t.untyped_storage()._cdata)
        if place is None:
            continue
        item = t.element_size()
        span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
        piece = Piece(prefix + name, tuple(t.shape), t.dtype, path, place + int(t.storage_offset()) * item, span * item)
        if piece.offset + piece.nbytes > size:
            what = f"truncated: {name} needs bytes up to {piece.offset + piece.nbytes}, the file has {size}"
            raise UnreadableCheckpoint(Problem(path=str(path), offset=size, what=what, lost="the tensors behind this point"))
        found.pieces.append(piece)
    return content


def _tensors(value: Any, where: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield ".".join(where), value._values() if value.is_sparse else value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, (*where, str(key)))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _tensors(inner, (*where, str(i)))


class _Storages:
    """Stands in for the storages of a pickle: meta tensors that remember which record they are."""

    def __init__(self) -> None:
        self.made: dict[str, torch.TypedStorage] = {}
        self.itemsize: dict[str, int] = {}

    def load(self, saved_id: tuple[Any, ...]) -> Any:
        _, kind, key, _, numel, *_ = saved_id
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        if str(key) not in self.made:
            self.itemsize[str(key)] = torch._utils._element_size(dtype)  # type: ignore[no-untyped-call]
            untyped = torch.UntypedStorage(int(numel) * self.itemsize[str(key)], device="meta")  # type: ignore[no-untyped-call]
            self.made[str(key)] = torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
        return self.made[str(key)]

    def places(self, offsets: dict[str, int]) -> dict[int, int]:
        """storage -> offset in the file."""
        return {s._untyped_storage._cdata: offsets[key] for key, s in self.made.items() if key in offsets}


def _unpickle(f: BinaryIO, storages: _Storages) -> Any:
    unpickler = restricted.Unpickler(f, encoding="utf-8")
    unpickler.persistent_load = storages.load  # type: ignore[method-assign]
    with safe_globals():
        return unpickler.load()  # type: ignore[no-untyped-call]


def _zip(f: BinaryIO, base: int, size: int) -> tuple[Any, dict[int, int]]:
    """(content with tensors on meta, storage -> offset) of a zip archive that lies in f[base : base + size]."""
    whole = f if base == 0 else io.BytesIO(_slice(f, base, size))
    storages, offsets = _Storages(), {}
    with zipfile.ZipFile(whole) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records:
            raise ValueError("a zip archive without data.pkl: no torch checkpoint")
        if records["data.pkl"].compress_type != zipfile.ZIP_STORED:  # torch never packs it: a few bytes could unpack to gigabytes
            raise ValueError("record data.pkl is compressed: no torch checkpoint")
        content = _unpickle(io.BytesIO(archive.read(records["data.pkl"])), storages)
        if size <= _CRC_LIMIT:
            _check_sums(archive, whole)
        for name, info in records.items():
            if name.startswith("data/"):
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"record {name} is compressed: no torch checkpoint")
                offsets[name[5:]] = base + _data_offset(whole, info)
    missing = [key for key in storages.made if key not in offsets]
    if missing:
        raise ValueError(f"record data/{missing[0]} is missing")
    return content, storages.places(offsets)


def _slice(f: BinaryIO, base: int, size: int) -> bytes:
    f.seek(base)
    return f.read(size)


def _data_offset(f: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where a record's bytes begin: behind its local header, whose name and extra field have lengths of their own."""
    f.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", f.read(4))
    return int(info.header_offset) + 30 + int(name) + int(extra)


def _check_sums(archive: zipfile.ZipFile, f: BinaryIO) -> None:
    """ValueError names the record whose bytes changed. Archives that were written without checksums fail in every record."""
    wrong, right = [], 0
    for info in archive.infolist():
        data = _slice(f, _data_offset(f, info), info.file_size)
        if zlib.crc32(data) == info.CRC:
            right += 1
        else:
            wrong.append(info.filename.partition("/")[2])
    if wrong and right:
        raise ValueError(f"the checksum of record {wrong[0]} is wrong")


def _legacy(f: BinaryIO) -> tuple[Any, dict[int, int]]:
    storages = _Storages()
    for _ in range(3):  # magic number, protocol version, system
        _unpickle(f, storages)
    content = _unpickle(f, storages)
    keys = _unpickle(f, storages)
    offsets = {}
    for key in map(str, keys):
        (numel,) = struct.unpack("<q", f.read(8))
        offsets[key] = f.tell()
        f.seek(numel * storages.itemsize.get(key, 1), io.SEEK_CUR)
    return content, storages.places(offsets)


def _safetensors(path: Path, prefix: str, found: Layout) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        if length > min(size - 8, 100 * 2**20):
            raise UnreadableCheckpoint(
                Problem(path=str(path), offset=0, what=f"truncated or corrupt: its header is {length} bytes long, the file {size}", lost="the file")
            )
        header = json.loads(f.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no table of tensors")
    content: dict[str, Any] = header.pop("__metadata__", {})
    end = 8 + length + max((info["data_offsets"][1] for info in header.values()), default=0)
    if end != size:
        what = f"truncated: its tensors need {end} bytes, the file has {size}" if end > size else f"corrupt: {size - end} bytes too many"
        raise UnreadableCheckpoint(Problem(path=str(path), offset=min(size, end), what=what, lost="the file"))
    for name, info in header.items():
        start, stop = info["data_offsets"]
        dtype, shape = _SAFETENSORS.get(info["dtype"], torch.uint8), tuple(info["shape"])
        if not 0 <= start <= stop <= size - 8 - length or min(shape, default=0) < 0:
            raise ValueError(f"the header places {name}, of shape {shape}, at bytes {start} to {stop}")
        if stop - start != math.prod(shape) * dtype.itemsize and info["dtype"] in _SAFETENSORS:
            raise ValueError(f"the header gives {name} {stop - start} bytes for shape {shape}")
        found.pieces.append(Piece(prefix + name, shape, dtype, path, 8 + length + start, stop - start))
    return {k: int(v) if isinstance(v, str) and v.isdigit() else v for k, v in content.items()}


def _dcp(folder: Path, found: Layout) -> int | None:
    metadata = dcp.read_metadata(folder)
    for index, where in metadata.storage_data.items():
        kind = metadata.state_dict_metadata.get(index.fqn)
        path = folder / where.relative_path
        if not hasattr(kind, "chunks"):
            if index.fqn.rpartition(".")[2] in ("step", "global_step", "iteration") and "." not in index.fqn:
                found.step = int(dcp.load_chunk(folder, where))
            continue
        if not path.is_file() or path.stat().st_size < where.offset + where.length:
            what = (
                f"truncated: {index.fqn} needs bytes up to {where.offset + where.length}"
                if path.is_file()
                else "missing: the metadata names this file"
            )
            raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="its tensors"))
        with path.open("rb") as f:
            content, places = _zip(f, where.offset, where.length)
        for _, t in _tensors(content, (index.fqn,)):
            place = places[t.untyped_storage()._cdata] + int(t.storage_offset()) * t.element_size()
            found.pieces.append(Piece(index.fqn, tuple(t.shape), t.dtype, path, place, t.numel() * t.element_size(), tuple(index.offset or ())))
    return found.step if found.step is not None else step_in_content(None, folder)
