"""A `Reading`, or reports, as bytes and back, exactly: JSON and plain arrays of numbers, nothing that could run code.

Layout: `_MAGIC`, 16 bytes of BLAKE2b of all that follows, the length of the JSON (8 bytes), the JSON, the arrays one
after the other, each at a multiple of 8 bytes. The JSON names the type and shape of each array.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

import numpy as np

from postmortem.core.machine import MachineLog
from postmortem.core.model import Checkpoint, Diagnosis, Event, Finding, Problem, Source
from postmortem.core.points import Points
from postmortem.core.reading import Reading
from postmortem.core.report import Around, RunReport
from postmortem.core.skipped import REASONS, Skip, Skips

_MAGIC = b"postmortem reading 1\n"
_DIGEST = 16
_CLASSES: dict[str, type] = {c.__name__: c for c in (Reading, Event, Problem, MachineLog)}
_CLASSES |= {c.__name__: c for c in (RunReport, Finding, Diagnosis, Checkpoint, Source, Around)}
_KINDS = "biuf"
"""Kinds of numpy types that are stored: booleans, integers, floats."""


class NotStorable(TypeError):
    """A reading with values of other types than a log holds, such as those of a plugin."""


class DamagedReading(ValueError):
    """Bytes that `to_bytes` did not make, or that changed since."""


def to_bytes(reading: Reading) -> bytes:
    """The bytes of a reading; NotStorable if it holds something else than plain values, arrays and events."""
    return stored(reading)


def from_bytes(data: bytes) -> Reading:
    """The reading of these bytes; DamagedReading if they are not whole."""
    reading = restored(data)
    if not isinstance(reading, Reading):
        raise DamagedReading("it holds no reading")
    return reading


def stored(value: Any) -> bytes:
    """The bytes of a reading, of reports, or of containers of them; NotStorable for anything else."""
    arrays: list[np.ndarray[Any, Any]] = []
    tree = _packed(value, arrays)
    types = [[a.dtype.str, list(a.shape)] for a in arrays]
    head = json.dumps({"tree": tree, "arrays": types}).encode("ascii")
    pieces = [len(head).to_bytes(8, "little"), head + b" " * (-len(head) % 8)]
    for array in arrays:
        data = np.ascontiguousarray(array).tobytes()
        pieces.append(data + b"\0" * (-len(data) % 8))
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for piece in pieces:
        digest.update(piece)
    return b"".join((_MAGIC, digest.digest(), *pieces))


def restored(data: bytes) -> Any:
    """What `stored` made these bytes of; DamagedReading if they are not whole."""
    start = len(_MAGIC) + _DIGEST
    content = memoryview(data)[start:]
    if (
        not data.startswith(_MAGIC)
        or hashlib.blake2b(content, digest_size=_DIGEST).digest() != data[start - _DIGEST : start]
    ):
        raise DamagedReading("its checksum does not match")
    try:
        size = int.from_bytes(content[:8], "little")
        head = json.loads(bytes(content[8 : 8 + size]))
        at, arrays = 8 + size + -size % 8, []
        for name, shape in head["arrays"]:
            dtype = np.dtype(name)
            count = int(np.prod(shape, dtype=np.int64))
            # a copy: what is read from a file may be changed as well
            arrays.append(np.frombuffer(content, dtype, count, at).reshape(shape).copy())
            at += count * dtype.itemsize + -(count * dtype.itemsize) % 8
        return _unpacked(head["tree"], arrays)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise DamagedReading(f"{type(error).__name__}: {error}") from error


def _packed(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """`value` as JSON: a list is [name of its type, …]; arrays are added to `arrays`."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *(_packed(v, arrays) for v in value)]
    if kind is dict:
        return ["dict", *([_packed(k, arrays), _packed(v, arrays)] for k, v in value.items())]
    if kind is Skips and all(type(why) is Skip for why in value):
        counts = {str(why): int(n) for why, n in value.items()}
        return ["Skips", _packed(counts, arrays), _packed(dict(value.words), arrays)]
    if kind is Points:
        return ["Points", *(_packed(v, arrays) for v in value.stored())]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _KINDS:
        arrays.append(np.asarray(value))
        return ["array" if isinstance(value, np.ndarray) else "number", len(arrays) - 1]
    if _CLASSES.get(kind.__name__) is kind:
        return [kind.__name__, *(_packed(getattr(value, f.name), arrays) for f in fields(value))]
    raise NotStorable(kind.__name__)


def _unpacked(tree: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind == "array":
        return arrays[rest[0]]
    if kind == "number":
        return arrays[rest[0]][()]
    if kind == "dict":
        return {_unpacked(k, arrays): _unpacked(v, arrays) for k, v in rest}
    values = [_unpacked(v, arrays) for v in rest]
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    if kind == "Skips":
        counts, words = values
        return Skips({REASONS[why]: n for why, n in counts.items()}, words)
    if kind == "Points":
        return Points.of_stored(*values)
    made = _CLASSES[kind]
    return made(**dict(zip((f.name for f in fields(made)), values, strict=True)))
