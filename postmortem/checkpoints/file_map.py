"""Where every tensor of a checkpoint lies in its files, found without reading the weights.

Formats. Zip (torch >= 1.6): ``data.pkl`` holds the structure, ``data/<key>`` the bytes of each storage, uncompressed. Legacy: four
pickles (magic number, protocol, system, structure), the storage keys, then for each key its length (int64) and bytes.
safetensors: a length (uint64), a JSON header with offsets, the bytes. Pickles are read with torch's own restricted
unpickler, storages standing on the meta device, so nothing of a file is run and nothing large is loaded.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import struct
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import _weights_only_unpickler as restricted

from postmortem.checkpoints.content import shards_named, step_in_content
from postmortem.checkpoints.find import is_weights
from postmortem.checkpoints.formats import dcp
from postmortem.checkpoints.formats.restricted_pickle import (
    LONGEST_PICKLE,
    WHOLE,
    Pickle,
    Trusting,
    UnreadableCheckpoint,
    is_zip,
    safe_globals,
    short,
    why_unreadable,
)
from postmortem.checkpoints.formats.zip_archive import Part, check_sums, data_offset
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

_JSON_LIMIT = 25 * 2**20  # JSON takes up to thirty times its size in memory; 25 MiB describe 200,000 tensors
_SHOWN = 20  # missing files that are named one by one
_DEEPEST = 64  # levels of containers in containers; no training state has so many
_OVERLAP = 16  # tensors may share their bytes (tied weights, views), but together they are no more than this many files
_RUNS = 2**14  # parts in which the views of a file may lie, together
_SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    **{name: getattr(torch, dtype) for name, dtype in (
        ("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"), ("F8_E8M0", "float8_e8m0fnu"),
        ("F8_E4M3FNUZ", "float8_e4m3fnuz"), ("F8_E5M2FNUZ", "float8_e5m2fnuz"), ("U16", "uint16"), ("U32", "uint32"), ("U64", "uint64"),
    ) if hasattr(torch, dtype)},
}  # fmt: skip
_ALWAYS_FINITE = ("F4", "F6_E2M3", "F6_E3M2")  # packed types that have no NaN and no infinity


Stamp = tuple[int, int, int] | None


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
    stamps: dict[Path, Stamp] = field(default_factory=dict)

    def changed(self) -> set[Path]:
        """The files that are not what they were when they were opened: what lies where in them is no longer known."""
        return {path for path, stamp in self.stamps.items() if stamp_of(path) != stamp}


def stamp_of(path: Path) -> Stamp:
    """What tells one state of a file from another: its inode, its size, when it was written; None where it is gone."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def layout(path: Path, *, trust: bool = False) -> Layout:
    """The layout of a checkpoint, file or folder. Damage is in `problems`; nothing is raised for content.

    `trust` unpickles whatever is in it: only for files of one's own.
    """
    found = Layout()
    contents: dict[str, Any] = {}
    if dcp.is_dcp(path):
        found.step = _guarded(found, path, lambda: _dcp(path, found))
        return found
    folder = path.is_dir()
    files = _weights_below(path) if folder else [path]
    if folder:
        found.problems += _missing_shards(path, {f.name for f in files})
    for file in files:
        prefix = "" if len(files) == 1 or file.suffix == ".safetensors" else file.name.partition(".")[0] + "."
        contents[file.stem] = _guarded(found, file, lambda file=file, prefix=prefix: _file(file, prefix, found, trust))
    if not found.pieces and not found.problems:
        found.problems.append(Problem(path=str(path), what="no saved weights in this folder" if folder else "no tensors in it"))
    for extra in _json_files(path, ".json"):
        contents.setdefault(extra.stem, _json(extra))
    found.step = _guarded(found, path, lambda: step_in_content(contents if folder else next(iter(contents.values()), None), path))
    return found


def _weights_below(folder: Path) -> list[Path]:
    """The files with weights in a folder and those below; a folder that is deleted meanwhile holds none."""
    return sorted(Path(where, name) for where, _, names in os.walk(folder) for name in names if is_weights(name))


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
        return json.loads(path.read_text(encoding="utf-8", errors="replace")) if path.stat().st_size < _JSON_LIMIT else None
    except (OSError, ValueError, RecursionError):
        return None  # says no step then; `read_saved` reports it where it matters


def _json_files(folder: Path, ending: str) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(ending))
    except OSError:  # a file, or a folder that was deleted meanwhile: what lay in it is a problem already
        return []


def _missing_shards(folder: Path, there: set[str]) -> Iterator[Problem]:
    for index in _json_files(folder, ".index.json"):
        missing = sorted(set(shards_named(_json(index))) - there)
        for name in missing[:_SHOWN]:
            yield Problem(path=str(folder / name), what=f"missing: {index.name} names this file", lost="its weights")
        if len(missing) > _SHOWN:
            yield Problem(path=str(index), what=f"{len(missing) - _SHOWN} more files that it names are missing", lost="their weights")


def _file(path: Path, prefix: str, found: Layout, trust: bool) -> Any:
    found.stamps[path] = stamp_of(path)
    if path.stat().st_size == 0:
        raise EOFError
    if path.suffix == ".safetensors":
        return _safetensors(path, prefix, found)
    size = path.stat().st_size
    with path.open("rb") as f:
        content, places = _zip(f, 0, size, trust) if is_zip(path) else _legacy(f, trust)
    claimed: dict[tuple[int, int], None] = {}
    left = _RUNS
    for name, t in _tensors(content):
        place = places.get(t.untyped_storage()._cdata)
        if place is None:
            continue
        item = t.element_size()
        runs = _runs(t, left)
        left -= len(runs) - 1
        for start, count in runs:
            shape, part = (tuple(t.shape), ()) if len(runs) == 1 else ((count,), (start,))
            piece = Piece(prefix + name, shape, t.dtype, path, place + start * item, count * item, part)
            if piece.offset + piece.nbytes > size:
                what = f"truncated: {name} needs bytes up to {piece.offset + piece.nbytes}, the file has {size}"
                raise UnreadableCheckpoint(Problem(path=str(path), offset=size, what=what, lost="the tensors behind this point"))
            claimed[piece.offset, piece.nbytes] = None
            found.pieces.append(piece)
    if (total := sum(nbytes for _, nbytes in claimed)) > _OVERLAP * size:
        found.pieces = [p for p in found.pieces if p.path != path]
        raise ValueError(f"its tensors lie over one another: they claim {total} bytes of a file of {size}")
    return content


def _runs(t: torch.Tensor, most: int) -> list[tuple[int, int]]:
    """Where a tensor lies in its storage: (first number, how many) of each run without gaps. Views may have many, such as `w[:, :8]`,
    and what lies in the gaps is not theirs; one of more than `most` is taken from its first to its last number."""
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


def _tensors(content: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested containers by their path. What stands in several places counts at the first: a pickle of a
    hundred bytes can hold a list that holds itself, or 2^60 paths."""
    seen: set[int] = set()
    waiting = [(where, content)]
    while waiting:
        path, value = waiting.pop()
        value = value.state_dict() if isinstance(value, WHOLE) else value
        if isinstance(value, torch.Tensor):
            compressed = value.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
            yield ".".join(path), value._values() if value.is_sparse else value.values() if compressed else value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen and len(path) < _DEEPEST:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += reversed([((*path, str(key)), inner) for key, inner in items])


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


def _unpickle(f: Pickle, storages: _Storages, trust: bool = False) -> Any:
    unpickler: Any = Trusting(f, encoding="utf-8") if trust else restricted.Unpickler(f, encoding="utf-8")
    unpickler.persistent_load = storages.load
    if not trust:
        f.guards(unpickler)
    with safe_globals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickle protocols: what cannot be read is said by the error
        return unpickler.load()


def _zip(f: BinaryIO, base: int, size: int, trust: bool = False) -> tuple[Any, dict[int, int]]:
    """(content with tensors on meta, storage -> offset) of a zip archive that lies in f[base : base + size]."""
    part = Part(f, base, size)
    storages, offsets = _Storages(), {}
    with zipfile.ZipFile(part) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records:
            raise ValueError("a zip archive without data.pkl: no torch checkpoint")
        if records["data.pkl"].compress_type != zipfile.ZIP_STORED:  # torch never packs it: a few bytes could unpack to gigabytes
            raise ValueError("record data.pkl is compressed: no torch checkpoint")
        with archive.open(records["data.pkl"]) as record:
            content = _unpickle(Pickle(record.read(LONGEST_PICKLE + 1)), storages, trust)
        check_sums(archive, part)
        for name, info in records.items():
            if name.startswith("data/"):
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"record {name} is compressed: no torch checkpoint")
                offsets[name[5:]] = base + data_offset(part, info)
    missing = [key for key in storages.made if key not in offsets]
    if missing:
        raise ValueError(f"record data/{missing[0]} is missing")
    part.seek(0)
    strict: Any = torch._C.PyTorchFileReader  # what it refuses nobody can load; Python's reader forgives more
    strict(part).get_all_records()
    return content, storages.places(offsets)


def _legacy(f: BinaryIO, trust: bool) -> tuple[Any, dict[int, int]]:
    """As `_zip`, of a legacy file. Its pickles lie before its tensors, so they are in the first bytes that `Pickle` allows."""
    storages, start = _Storages(), Pickle(f.read(LONGEST_PICKLE + 1))
    for _ in range(3):  # magic number, protocol version, system
        _unpickle(start, storages)
    content = _unpickle(start, storages, trust)
    keys = _unpickle(start, storages)
    if not isinstance(keys, list) or len(keys) > len(storages.made) + 1000:
        raise ValueError("no list of its storages")
    f.seek(start.tell())
    offsets = {}
    for key in map(str, keys):
        (numel,) = struct.unpack("<q", f.read(8))
        if numel < 0:
            raise ValueError(f"storage {key} has {numel} numbers")
        offsets[key] = f.tell()
        f.seek(numel * storages.itemsize.get(key, 1), io.SEEK_CUR)
    return content, storages.places(offsets)


def _safetensors(path: Path, prefix: str, found: Layout) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        if length > size - 8:
            what = f"truncated or corrupt: its header is {length} bytes long, the file {size}"
            raise UnreadableCheckpoint(Problem(path=str(path), offset=0, what=what, lost="the file"))
        if length > _JSON_LIMIT:
            raise ValueError(f"its header is {length} bytes long; more than {_JSON_LIMIT} are not read")
        header = _header(f.read(length))
    content: dict[str, Any] = header.pop("__metadata__", None) or {}
    places = sorted(((*_offsets(name, info), name) for name, info in header.items()), key=lambda p: p[:2])
    end = 8 + length + max((stop for _, stop, _ in places), default=0)
    if end != size:
        what = f"truncated: its tensors need {end} bytes, the file has {size}" if end > size else f"corrupt: {size - end} bytes too many"
        raise UnreadableCheckpoint(Problem(path=str(path), offset=min(size, end), what=what, lost="the file"))
    for (_, stop, name), (start, _, other) in itertools.pairwise(places):
        if start < stop:
            raise ValueError(f"the header places {other} at bytes {start} on, where {name} lies")
    pieces = []
    for name, info in header.items():
        start, stop = info["data_offsets"]
        kind = info.get("dtype")
        dtype, shape = _SAFETENSORS.get(kind, torch.uint8) if isinstance(kind, str) else torch.uint8, info.get("shape")
        if not isinstance(kind, str) or not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"the header gives {name} dtype {str(kind)[:40]} and shape {str(shape)[:40]}")
        if stop - start != math.prod(shape) * dtype.itemsize and kind in _SAFETENSORS:
            raise ValueError(f"the header gives {name} {stop - start} bytes for shape {tuple(shape)}")
        pieces.append(Piece(prefix + name, tuple(shape), dtype, path, 8 + length + start, stop - start))
    found.pieces += pieces
    foreign = [f"{n} is {info['dtype'][:40]}" for n, info in header.items() if info["dtype"] not in (*_SAFETENSORS, *_ALWAYS_FINITE)]
    if foreign:
        what = f"{len(foreign)} tensors have a dtype that is not known, and were not looked at: {', '.join(foreign[:3])}"
        found.problems.append(Problem(path=str(path), what=what, kept="the others"))
    return {k: int(v) if isinstance(v, str) and v.isdigit() else v for k, v in content.items()} if isinstance(content, dict) else {}


def _header(data: bytes) -> dict[str, Any]:
    """The table of tensors at the head of a safetensors file. ValueError where it is none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError(f"its header has {Counter(name for name, _ in pairs).most_common(1)[0][0]} twice")
        return table

    try:
        header = json.loads(data, object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header is no JSON: {short(error)}") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no table of tensors")
    return header


def _offsets(name: str, info: Any) -> tuple[int, int]:
    match info.get("data_offsets") if isinstance(info, dict) else None:
        case [int(start), int(stop)] if 0 <= start <= stop:
            return start, stop
    raise ValueError(f"the header says of {name} no place in the file, but {str(info)[:80]}")


def _dcp(folder: Path, found: Layout) -> int | None:
    metadata = dcp.read_metadata(folder)
    for index, where in metadata.storage_data.items():
        kind = metadata.state_dict_metadata.get(index.fqn)
        path = folder / where.relative_path
        if not dcp.inside(where):
            raise ValueError(f"its metadata places {index.fqn} at byte {where.offset} of {where.relative_path}")
        if not hasattr(kind, "chunks"):
            value = _guarded(found, path, lambda where=where: dcp.load_chunk(folder, where)) if where.length < 2**16 else None
            if index.fqn in ("step", "global_step", "iteration") and value is not None:
                found.step = int(value)
            continue
        if not path.is_file() or path.stat().st_size < where.offset + where.length:
            what = (
                f"truncated: {index.fqn} needs bytes up to {where.offset + where.length}"
                if path.is_file()
                else "missing: the metadata names this file"
            )
            raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="its tensors"))
        found.stamps.setdefault(path, stamp_of(path))
        with path.open("rb") as f:
            content, places = _zip(f, where.offset, where.length)
        for _, t in _tensors(content, (index.fqn,)):
            place = places[t.untyped_storage()._cdata] + int(t.storage_offset()) * t.element_size()
            found.pieces.append(Piece(index.fqn, tuple(t.shape), t.dtype, path, place, t.numel() * t.element_size(), tuple(index.offset or ())))
    return found.step if found.step is not None else step_in_content(None, folder)


def optimizer_count(found: Layout) -> int | None:
    """The same from a file whose weights are not loaded; None where none says it."""
    counts = [p for p in found.pieces if p.name.endswith(".step") and ".state." in f".{p.name}" and math.prod(p.shape) == 1]
    seen = []
    for piece in counts[:64]:
        try:
            with piece.path.open("rb") as f:
                f.seek(piece.offset)
                data = bytearray(f.read(piece.nbytes))
        except OSError:  # gone since it was listed: it says nothing
            continue
        if len(data) == piece.nbytes == piece.dtype.itemsize:
            seen.append(torch.frombuffer(data, dtype=piece.dtype).item())
    return max((int(n) for n in seen if isinstance(n, (int, float)) and math.isfinite(n)), default=None)
