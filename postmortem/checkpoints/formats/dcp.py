"""torch.distributed.checkpoint folders: ``.metadata`` and ``*.distcp``, read without running what is pickled in them.

Format: ``.metadata`` is a pickle of `torch.distributed.checkpoint.metadata.Metadata`; it says for every tensor its size, its
chunks and where each chunk lies (file, offset, length). A chunk is a small torch file of its own.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections import defaultdict
from enum import EnumMeta
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from postmortem.checkpoints.formats.restricted_pickle import UnreadableCheckpoint, safe_globals, why_unreadable
from postmortem.checkpoints.formats.zip_archive import check_file
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path

_METADATA = "torch.distributed.checkpoint.metadata"
_CALLABLE = {
    *((_METADATA, n) for n in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING")),
    *((_METADATA, f"{kind}StorageMetadata") for kind in ("Tensor", "Bytes", "Chunk")),
    *((f"torch.distributed.checkpoint.{m}", n) for m in ("filesystem", "_fsspec_filesystem") for n in ("_StorageInfo", "_StoragePrefix")),
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


_OF_PYTHON = 1 << 9  # the flag of a class that was made by a class statement, and can be changed


class _Metadata(pickle.Unpickler):
    """An unpickler that knows the metadata classes, sizes and dtypes of torch, and nothing else."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._found: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        # names one by one: a module also holds what it imports, and a name may have dots ("os.system")
        if (module, name) not in _CALLABLE and not (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            raise pickle.UnpicklingError(f"refused: the metadata wants {module}.{name}")
        if (module, name) not in self._found:
            self._found[module, name] = _own(super().find_class(module, name))
        return self._found[module, name]


def _own(found: Any) -> Any:
    """What stands for a class or function in one pickle only: a pickle can set attributes of whatever it names."""
    if isinstance(found, (FunctionType, EnumMeta)):
        return functools.partial(found)
    return type(found.__name__, (found,), {}) if isinstance(found, type) and found.__flags__ & _OF_PYTHON else found


def is_dcp(folder: Path) -> bool:
    return folder.is_dir() and (folder / ".metadata").is_file()


def read_metadata(folder: Path) -> Any:
    """The `Metadata` of a folder. UnreadableCheckpoint where it is damaged or wants more than metadata."""
    path = folder / ".metadata"
    try:
        return _Metadata(path.read_bytes()).load()
    except Exception as error:  # a damaged pickle can raise anything
        what = (
            str(error)
            if isinstance(error, pickle.UnpicklingError) and "refused" in str(error)
            else f"truncated or corrupt metadata: {' '.join(str(error).split())[:200]}"
        )
        raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="the checkpoint")) from error


def read(folder: Path) -> dict[str, Any]:
    """The checkpoint as the nested dict that was saved, lists included; tensors are joined from their chunks, on the CPU.

    UnreadableCheckpoint where a part is damaged or missing.
    """
    metadata = read_metadata(folder)
    try:
        return _joined(folder, metadata)
    except UnreadableCheckpoint:
        raise
    except Exception as error:  # metadata that was read may still say anything
        what = f"truncated or corrupt metadata: {' '.join(str(error).split())[:200]}"
        raise UnreadableCheckpoint(Problem(path=str(folder / ".metadata"), what=what, lost="the checkpoint")) from error


def _joined(folder: Path, metadata: Any) -> dict[str, Any]:
    content: dict[str, Any] = {}
    places = defaultdict(list)
    for index, where in metadata.storage_data.items():
        places[index.fqn].append((index, where))
    for name, kind in metadata.state_dict_metadata.items():
        if hasattr(kind, "chunks"):
            value: Any = torch.empty(tuple(kind.size), dtype=kind.properties.dtype)
            filled = 0
            for index, where in places[name]:
                chunk = load_chunk(folder, where)
                offsets = tuple(index.offset) if index.offset is not None else (0,) * chunk.dim()
                value[tuple(slice(o, o + n) for o, n in zip(offsets, chunk.shape, strict=True))] = chunk
                filled += chunk.numel()
            if filled != value.numel():
                raise ValueError(f"its chunks of {name} hold {filled} of {value.numel()} numbers")
        else:
            value = load_chunk(folder, places[name][0][1]) if places[name] else None
        _place(content, (metadata.planner_data or {}).get(name, (name,)), value)
    return {key: _with_lists(inner) for key, inner in content.items()}


def inside(where: Any) -> bool:
    """Whether a `_StorageInfo` names a place in the checkpoint's own folder."""
    path = PurePath(where.relative_path)
    return not path.is_absolute() and ".." not in path.parts and min(where.offset, where.length) >= 0


def load_chunk(folder: Path, where: Any) -> Any:
    """One chunk, by its `_StorageInfo`. UnreadableCheckpoint names the file and offset."""
    if not inside(where):
        raise ValueError(f"it places a part at byte {where.offset} of {where.relative_path}")
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
        what = why_unreadable(path, error) if path.is_file() else "missing: the metadata names this file"
        raise UnreadableCheckpoint(Problem(path=str(path), offset=where.offset, what=what, lost="its tensors")) from error


def _place(content: dict[str, Any], where: Any, value: Any) -> None:
    """Puts `value` at a path of keys."""
    for key in where[:-1]:
        content = content.setdefault(key, {})
    content[where[-1]] = value


def _with_lists(value: Any) -> Any:
    """Dicts whose keys are numbers as the lists they were: in a path, keys of dicts are always text."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(v) for key, v in value.items()}
    return [inner[i] for i in sorted(inner)] if inner and all(isinstance(key, int) for key in inner) else inner
