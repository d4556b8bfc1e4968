"""safetensors files."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.formats import CheckpointFormat, checkpoint_format
from postmortem.core.errors import MissingExtra, UnreadableCheckpoint
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from postmortem.checkpoints.formats.shared.pieces import Piece, Pieces

_HEADER_LIMIT = 25 * 2**20  # JSON takes up to thirty times its size in memory; 25 MiB describe 200,000 tensors
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "U16": "uint16",
    "U32": "uint32", "U64": "uint64",
}  # fmt: skip
_ALWAYS_FINITE = ("F4", "F6_E2M3", "F6_E3M2")  # packed types without NaN and infinity


@checkpoint_format
class Safetensors(CheckpointFormat):
    """safetensors: a length (uint64), a JSON header with the dtype, shape and offsets of each tensor, then the bytes.

    Source: the README of huggingface/safetensors.
    """

    name = "safetensors"
    priority = 10
    suffixes = (".safetensors",)

    @staticmethod
    def claims(path: Path) -> bool:
        return path.suffix == ".safetensors" and not path.is_dir()

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Pieces:
        return _pieces(path)

    @staticmethod
    def read(path: Path, *, trust: bool) -> dict[str, torch.Tensor]:
        from postmortem.checkpoints.formats.shared.restricted_pickle import short

        try:
            from safetensors.torch import load_file
        except ImportError:
            raise MissingExtra("reading safetensors", "replay") from None
        try:
            path.open("rb").close()  # the package reports a file without read permission as missing
            return dict(load_file(str(path)))
        except OSError:
            raise
        except Exception as error:  # SafetensorError has no base class that could be named without the package
            what = f"truncated or corrupt safetensors: {short(error)}"
            raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="the file")) from error


def _pieces(path: Path) -> Pieces:
    from postmortem.checkpoints.formats.shared.pieces import Pieces

    size = path.stat().st_size
    with path.open("rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        if length > size - 8:
            what = f"truncated or corrupt: the header has {length} bytes, the file {size}"
            raise UnreadableCheckpoint(Problem(path=str(path), offset=0, what=what, lost="the file"))
        if length > _HEADER_LIMIT:
            raise ValueError(f"the header has {length} bytes; more than {_HEADER_LIMIT} are not read")
        header = _header(f.read(length))
    metadata = header.pop("__metadata__", None) or {}
    places = sorted(((*_offsets(name, info), name) for name, info in header.items()), key=lambda p: p[:2])
    end = 8 + length + max((stop for _, stop, _ in places), default=0)
    if end != size:
        short = f"truncated: the tensors need {end} bytes, the file has {size}"
        what = short if end > size else f"corrupt: {size - end} bytes after the last tensor"
        raise UnreadableCheckpoint(Problem(path=str(path), offset=min(size, end), what=what, lost="the file"))
    for (_, stop, name), (begin, _, other) in itertools.pairwise(places):
        if begin < stop:
            raise ValueError(f"the header places {other} at byte {begin}, inside {name}")
    held = Pieces({k: _number(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {})
    held.pieces = [_piece(path, name, info, 8 + length) for name, info in header.items()]
    known = (*_DTYPES, *_ALWAYS_FINITE)
    foreign = [f"{n} is {info['dtype'][:40]}" for n, info in header.items() if info["dtype"] not in known]
    if foreign:
        shown = ", ".join(foreign[:3])
        what = f"{len(foreign)} tensors of unknown dtype were not checked: {shown}"
        held.problems.append(Problem(path=str(path), what=what, kept="the others"))
    return held


def _number(value: Any) -> Any:
    """Metadata holds strings only: a string of digits is a number."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _header(data: bytes) -> dict[str, Any]:
    """The table of tensors at the head of the file. Raises ValueError if it is invalid."""
    from postmortem.checkpoints.formats.shared.restricted_pickle import short

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError(f"the header lists {Counter(name for name, _ in pairs).most_common(1)[0][0]} twice")
        return table

    try:
        header = json.loads(data, object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the header is not valid JSON: {short(error)}") from None
    if not isinstance(header, dict):
        raise ValueError("the header is not a table of tensors")
    return header


def _offsets(name: str, info: Any) -> tuple[int, int]:
    match info.get("data_offsets") if isinstance(info, dict) else None:
        case [int(start), int(stop)] if 0 <= start <= stop:
            return start, stop
    raise ValueError(f"the header gives no valid data_offsets for {name}: {str(info)[:80]}")


def _piece(path: Path, name: str, info: dict[str, Any], base: int) -> Piece:
    """One tensor of the header, whose bytes count from `base`. Raises ValueError if dtype, shape and size disagree."""
    from postmortem.checkpoints.formats.shared.dtypes import DTYPES
    from postmortem.checkpoints.formats.shared.pieces import Piece

    start, stop = info["data_offsets"]
    kind, shape = info.get("dtype"), info.get("shape")
    if (
        not isinstance(kind, str)
        or not isinstance(shape, list)
        or not all(isinstance(n, int) and n >= 0 for n in shape)
    ):
        raise ValueError(f"the header gives dtype {str(kind)[:40]} and shape {str(shape)[:40]} for {name}")
    dtype = DTYPES[_DTYPES.get(kind, "uint8")]
    if stop - start != math.prod(shape) * dtype.itemsize and kind in _DTYPES:
        raise ValueError(f"the header gives {stop - start} bytes for {name} of shape {tuple(shape)}")
    return Piece(name, tuple(shape), dtype, path, base + start, stop - start)
