"""Where time, step and value stand in the bytes of one scalar event."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from postmortem.readers.shared.protobuf import DecodeError
from postmortem.readers.tensorboard.event_proto import DTYPES, EVENT, number

# Keys of protobuf fields: the number and, in the low three bits, the wire type.
_WALL_TIME, _STEP, _SUMMARY = 1 << 3 | 1, 2 << 3, 5 << 3 | 2
_VALUE = 1 << 3 | 2
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1 << 3 | 2, 2 << 3 | 5, 8 << 3 | 2, 9 << 3 | 2
_CONTENT, _PACKED = 4 << 3 | 2, {"float_val": 5 << 3 | 2, "double_val": 6 << 3 | 2}


class FieldOffsets(NamedTuple):
    """Where the fields of one scalar event are in its bytes. `dtype` is the tensor's, 1 (float) without one."""

    wall_time: int
    step: int
    step_bytes: int
    value: int
    dtype: int


class ScalarRecord(NamedTuple):
    """An intact event of exactly one scalar: tag, plugin, step, number of bytes, and where its fields are in them."""

    tag: bytes
    plugin: bytes
    step: int
    length: int
    offsets: FieldOffsets


def scalar_record(record: bytes) -> ScalarRecord | None:
    """The scalar event in an intact payload; None if it is no event of exactly one scalar."""
    try:
        offsets = _located(record)
        if offsets is None:
            return None
        event = EVENT.FromString(record)
    except (ValueError, IndexError, DecodeError):  # not protobuf, or a kind that is not read
        return None
    value = event.summary.value[0]
    return ScalarRecord(value.tag, value.metadata.plugin_data.plugin_name, event.step, len(record), offsets)


def _located(record: bytes) -> FieldOffsets | None:
    event = _fields(record, 0, len(record))
    if not {_WALL_TIME, _SUMMARY} <= event.keys() <= {_WALL_TIME, _STEP, _SUMMARY}:
        return None
    summary = _fields(record, *event[_SUMMARY])
    value = _fields(record, *summary[_VALUE]) if summary.keys() == {_VALUE} else {}
    wall_time, (step, step_end) = event[_WALL_TIME][0], event.get(_STEP, (0, 0))
    if _SIMPLE_VALUE in value and value.keys() <= {_TAG, _SIMPLE_VALUE, _METADATA}:
        return FieldOffsets(wall_time, step, step_end - step, value[_SIMPLE_VALUE][0], 1)
    if _TENSOR not in value or not value.keys() <= {_TAG, _TENSOR, _METADATA}:
        return None
    tensor = EVENT.FromString(record).summary.value[0].tensor
    if number(tensor) is None:
        return None
    kind, field = DTYPES[tensor.dtype]
    key = _CONTENT if tensor.content else _PACKED.get(field, 0)
    at, stop = _fields(record, *value[_TENSOR]).get(key, (0, 0))
    return (
        FieldOffsets(wall_time, step, step_end - step, at, tensor.dtype)
        if stop - at == np.dtype(kind).itemsize
        else None
    )


def _fields(record: bytes, start: int, stop: int) -> dict[int, tuple[int, int]]:
    """Spans of the fields of the protobuf message in record[start:stop], by key (number and wire type).

    Raises ValueError if a field occurs twice or its wire type is unknown.
    """
    found: dict[int, tuple[int, int]] = {}
    while start < stop:
        key, start = _varint(record, start)
        wire = key & 7
        if wire == 0:
            end = _varint(record, start)[1]
        elif wire == 2:
            size, start = _varint(record, start)
            end = start + size
        elif wire in (1, 5):
            end = start + (8 if wire == 1 else 4)
        else:
            raise ValueError(f"wire type {wire}")
        if key in found or end > stop:
            raise ValueError(f"field {key >> 3}")
        found[key] = start, end
        start = end
    return found


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
