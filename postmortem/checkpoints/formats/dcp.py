"""torch.distributed.checkpoint folders, read without running what is pickled in them."""

from __future__ import annotations

import functools
import io
import math
import pickle
from collections import defaultdict
from enum import EnumMeta
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.checkpoints.formats import CheckpointFormat, checkpoint_format
from postmortem.core.errors import UnreadableCheckpoint
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from postmortem.checkpoints.formats.shared.pieces import Pieces


_METADATA = "torch.distributed.checkpoint.metadata"
_CALLABLE = {
    *((_METADATA, n) for n in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING")),
    *((_METADATA, f"{kind}StorageMetadata") for kind in ("Tensor", "Bytes", "Chunk")),
    *(
        (f"torch.distributed.checkpoint.{m}", n)
        for m in ("filesystem", "_fsspec_filesystem")
        for n in ("_StorageInfo", "_StoragePrefix")
    ),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"),
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
    ("torch._C", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("copyreg", "_reconstructor"),
    ("builtins", "object"),
}


_OF_PYTHON = 1 << 9  # the flag of a class that was created by a class statement and is mutable


@checkpoint_format
class DistributedCheckpoint(CheckpointFormat):
    """A torch.distributed.checkpoint folder: ``.metadata`` beside ``*.distcp``.

    ``.metadata`` is a pickle of `torch.distributed.checkpoint.metadata.Metadata`; it has for every tensor its size, its
    chunks and the place of each chunk (file, offset, length). A chunk is a small torch file of its own. Source:
    torch/distributed/checkpoint/filesystem.py.
    """

    name = "dcp"
    priority = 20
    suffixes = (".distcp",)

    @staticmethod
    def is_folder(names: Collection[str]) -> bool:
        return ".metadata" in names and any(name.endswith(".distcp") for name in names)

    @staticmethod
    def claims(path: Path) -> bool:
        return path.is_dir() and (path / ".metadata").is_file()

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Pieces:
        return _pieces(path)

    @staticmethod
    def verify(path: Path) -> None:
        _verify(path)

    @staticmethod
    def read(path: Path, *, trust: bool) -> dict[str, Any]:
        return _read(path)


class _Metadata(pickle._Unpickler):
    """An unpickler that knows the metadata classes, sizes and dtypes of torch, and nothing else.

    It is Python's own: that in C reserves room for as many objects as an index claims, 2 GB for a pickle of 9 bytes. A
    bytearray of any claimed length is refused, as both fill one first.
    """

    dispatch: ClassVar = {op: load for op, load in pickle._Unpickler.dispatch.items() if op != pickle.BYTEARRAY8[0]}

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._found: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        import torch

        # names one by one: a module also holds what it imports, and a name may have dots ("os.system")
        if (module, name) not in _CALLABLE and not (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            raise pickle.UnpicklingError(f"refused: the metadata requires {module}.{name}")
        if (module, name) not in self._found:
            self._found[module, name] = _own(super().find_class(module, name))
        return self._found[module, name]


def _own(found: Any) -> Any:
    """A substitute for a class or function, used for one pickle only: a pickle can set attributes of what it names."""
    if isinstance(found, (FunctionType, EnumMeta)):
        return functools.partial(found)
    return type(found.__name__, (found,), {}) if isinstance(found, type) and found.__flags__ & _OF_PYTHON else found


def _read_metadata(folder: Path) -> Any:
    """The `Metadata` of a folder. Raises UnreadableCheckpoint if it is damaged, something else, or requires others."""
    path = folder / ".metadata"
    try:
        found = _Metadata(path.read_bytes()).load()
    except Exception as error:  # a damaged pickle can raise anything
        refused = isinstance(error, pickle.UnpicklingError) and "refused" in str(error)
        what = str(error) if refused else "truncated, corrupt or no metadata of a checkpoint: not a whole pickle"
        what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else what
        raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="the checkpoint")) from error
    if other := _not_metadata(found):
        what = f"not the metadata of a checkpoint: {other}"
        raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="the checkpoint"))
    return found


def _not_metadata(found: Any) -> str:
    """What a `.metadata` holds that is none: other programs write files of this name. "" if it is one."""
    if type(found).__name__ != "Metadata":  # of its class no more is known here: see `_own`
        return f"it holds a value of type {type(found).__name__}"
    for name in ("storage_data", "state_dict_metadata"):
        if not isinstance(held := getattr(found, name, None), dict):
            return f"its {name} is a value of type {type(held).__name__}"
    wrong = (key for key in found.storage_data if not hasattr(key, "fqn"))
    return next((f"a name in its storage_data is a value of type {type(key).__name__}" for key in wrong), "")


def _pieces(folder: Path) -> Pieces:
    """The place of each chunk of each tensor; small values that are not tensors are read for the step."""
    from postmortem.checkpoints.formats.shared.pieces import Pieces

    held = Pieces()
    metadata = _read_metadata(folder)
    for index, where in metadata.storage_data.items():
        kind = metadata.state_dict_metadata.get(index.fqn)
        if not _inside(where):
            place = f"byte {where.offset} of {where.relative_path}"
            raise ValueError(f"invalid place of {index.fqn} in the metadata: {place}")
        if hasattr(kind, "chunks"):
            if (problem := _add_chunk(held, folder, index, where)) is not None:
                held.problems.append(problem)
                return held
        elif where.length < 2**16:
            _read_value(held, folder, index, where)
    return held


def _read_value(held: Pieces, folder: Path, index: Any, where: Any) -> None:
    """Reads a value that is not a tensor; a step count is stored in `held`."""
    try:
        value = _load_chunk(folder, where)
    except UnreadableCheckpoint as error:
        held.problems.append(error.problem)
        return
    if index.fqn in ("step", "global_step", "iteration") and value is not None:
        held.step = int(value)


def _add_chunk(held: Pieces, folder: Path, index: Any, where: Any) -> Problem | None:
    """Adds one chunk of a tensor to `held`; returns a Problem if its file is too short or missing."""
    from postmortem.checkpoints.formats.shared.pieces import Piece, stamp_of
    from postmortem.checkpoints.formats.shared.structure import structure_of_zip, tensors_in_state

    path = folder / where.relative_path
    needed = where.offset + where.length
    if not path.is_file() or path.stat().st_size < needed:
        truncated = f"truncated: {index.fqn} needs bytes up to {needed}"
        what = truncated if path.is_file() else "missing: the metadata lists this file"
        return Problem(path=str(path), what=what, lost="its tensors")
    held.stamps.setdefault(path, stamp_of(path))
    with path.open("rb") as f:
        content, places, unverified = structure_of_zip(f, where.offset, where.length)
    held.unverified += unverified
    start = tuple(index.offset or ())
    for _, t in tensors_in_state(content, (index.fqn,)):
        offset = places[t.storage] + t.offset * t.dtype.itemsize
        nbytes = math.prod(t.shape) * t.dtype.itemsize
        held.pieces.append(Piece(index.fqn, t.shape, t.dtype, path, offset, nbytes, start))
    return None


def _verify(folder: Path) -> None:
    """Compares the checksums of all chunks. Raises ValueError with the chunk that is damaged."""
    from postmortem.checkpoints.formats.shared.zip_records import check_file

    for index, where in _read_metadata(folder).storage_data.items():
        with (folder / where.relative_path).open("rb") as f:
            f.seek(where.offset)
            if f.read(2) == b"PK":
                try:
                    check_file(f, where.length, where.offset)
                except ValueError as error:
                    raise ValueError(f"{where.relative_path}, {index.fqn}: {error}") from None


def _read(folder: Path) -> dict[str, Any]:
    """The checkpoint as the nested dict that was saved; tensors are joined from their chunks, on the CPU.

    Raises UnreadableCheckpoint if a part is damaged or missing.
    """
    metadata = _read_metadata(folder)
    try:
        return _joined(folder, metadata)
    except UnreadableCheckpoint:
        raise
    except Exception as error:  # metadata that could be read may still be invalid
        what = f"truncated or corrupt metadata: {' '.join(str(error).split())[:200]}"
        raise UnreadableCheckpoint(Problem(path=str(folder / ".metadata"), what=what, lost="the checkpoint")) from error


def _joined(folder: Path, metadata: Any) -> dict[str, Any]:
    import torch

    content: dict[str, Any] = {}
    places = defaultdict(list)
    for index, where in metadata.storage_data.items():
        places[index.fqn].append((index, where))
    for name, kind in metadata.state_dict_metadata.items():
        if hasattr(kind, "chunks"):
            value: Any = torch.empty(tuple(kind.size), dtype=kind.properties.dtype)
            filled = 0
            for index, where in places[name]:
                chunk = _load_chunk(folder, where)
                offsets = tuple(index.offset) if index.offset is not None else (0,) * chunk.dim()
                value[tuple(slice(o, o + n) for o, n in zip(offsets, chunk.shape, strict=True))] = chunk
                filled += chunk.numel()
            if filled != value.numel():
                raise ValueError(f"the chunks of {name} hold {filled} of {value.numel()} elements")
        else:
            value = _load_chunk(folder, places[name][0][1]) if places[name] else None
        _place(content, (metadata.planner_data or {}).get(name, (name,)), value)
    return {key: _with_lists(inner) for key, inner in content.items()}


def _inside(where: Any) -> bool:
    """Whether a `_StorageInfo` names a place in the checkpoint's own folder."""
    path = PurePath(where.relative_path)
    return not path.is_absolute() and ".." not in path.parts and min(where.offset, where.length) >= 0


def _load_chunk(folder: Path, where: Any) -> Any:
    """One chunk, by its `_StorageInfo`. Raises UnreadableCheckpoint with the file and offset."""
    import torch

    from postmortem.checkpoints.formats.shared.restricted_pickle import safe_globals, why_unreadable
    from postmortem.checkpoints.formats.shared.zip_records import check_file

    if not _inside(where):
        raise ValueError(f"invalid place in the metadata: byte {where.offset} of {where.relative_path}")
    path = folder / where.relative_path
    try:
        with path.open("rb") as f:
            f.seek(where.offset)
            data = f.read(where.length)
        if data.startswith(b"PK"):
            check_file(io.BytesIO(data), len(data))
        with safe_globals():
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # as above
        what = why_unreadable(path, error) if path.is_file() else "missing: the metadata lists this file"
        raise UnreadableCheckpoint(
            Problem(path=str(path), offset=where.offset, what=what, lost="its tensors")
        ) from error


def _place(content: dict[str, Any], where: Any, value: Any) -> None:
    """Puts `value` at a path of keys."""
    for key in where[:-1]:
        content = content.setdefault(key, {})
    content[where[-1]] = value


def _with_lists(value: Any) -> Any:
    """Turns dicts with integer keys back into lists: in a path, the keys of dicts are always strings."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(v) for key, v in value.items()}
    return [inner[i] for i in sorted(inner)] if inner and all(isinstance(key, int) for key in inner) else inner
