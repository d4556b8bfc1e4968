"""Scalar events in bulk: records that differ only in time, step and value are read column by column.

Two scalar events of one tag and one length are the same bytes but for the wall time, the step's digits and the value.
So one record is parsed with protobuf and its wire format walked to learn where these are (a `RecordPattern`); all
records of that length whose other bytes equal a learned pattern, bit for bit, are then that tag's, and their fields
and checksums are gathered with numpy. What fits no pattern is left to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import numpy as np

from postmortem.readers.shared.protobuf import DecodeError
from postmortem.readers.tensorboard.crc32c import masked, position_tables, unmask
from postmortem.readers.tensorboard.event_proto import DTYPES, EVENT, number, widen
from postmortem.readers.tensorboard.tfrecord import LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.tfrecord import Batch

FEW = 16
"""The fewest records of one length that are worth a pattern."""
MOST_NEW, TRIES = 256, 16
"""Patterns learned at a time, and how often: limits on what records that are no scalars can cost."""

_MIX = np.arange(1, LONG // 8 + 3, dtype=np.uint64) ** np.uint64(3) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
"""Factors of a hash; what it finds is compared word by word."""


# Keys of protobuf fields: the number and, in the low three bits, the wire type.
_WALL_TIME, _STEP, _SUMMARY = 1 << 3 | 1, 2 << 3, 5 << 3 | 2
_VALUE = 1 << 3 | 2
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1 << 3 | 2, 2 << 3 | 5, 8 << 3 | 2, 9 << 3 | 2
_CONTENT, _PACKED = 4 << 3 | 2, {"float_val": 5 << 3 | 2, "double_val": 6 << 3 | 2}


class Scalars(NamedTuple):
    """Fields of the n records of a batch, valid where `known`. `code` is the caller's code of the tag."""

    known: NDArray[np.bool_]
    code: NDArray[np.int32]
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]


class FieldOffsets(NamedTuple):
    """Where the fields of one scalar event are in its bytes. `dtype` is the tensor's, 1 (float) without one."""

    wall_time: int
    step: int
    step_bytes: int
    value: int
    dtype: int


@dataclass(slots=True, eq=False)
class RecordPattern:
    """Records of one length with their fields at the same offsets: one pattern of bytes per tag.

    `free` uint8[width] marks the bits that may differ; `pattern` uint64[k, width/8] are the other bits of each tag,
    `key` their hashes in ascending order, `crc` the checksum with the free bits zero, `code` the tag.
    """

    offsets: FieldOffsets
    length: int
    free: NDArray[np.uint8]
    pattern: NDArray[np.uint64]
    key: NDArray[np.uint64]
    crc: NDArray[np.uint32]
    code: NDArray[np.int32]

    @classmethod
    def of(cls, offsets: FieldOffsets, length: int, width: int) -> RecordPattern:
        size = np.dtype(DTYPES[offsets.dtype][0]).itemsize
        free = np.zeros(width, np.uint8)
        free[length:] = 0xFF  # the record's checksum and what follows it
        free[offsets.wall_time : offsets.wall_time + 8] = 0xFF
        free[offsets.step : offsets.step + offsets.step_bytes] = 0x7F
        free[offsets.value : offsets.value + size] = 0xFF
        none = np.empty(0, np.uint32)
        return cls(
            offsets,
            length,
            free,
            np.empty((0, width // 8), np.uint64),
            none.astype(np.uint64),
            none,
            none.astype(np.int32),
        )

    def fixed(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The bits of `rows` that may not differ, as words, and their hashes."""
        words = rows.view(np.uint64) & ~self.free.view(np.uint64)
        return words, words @ _MIX[: words.shape[1]]

    def learn(self, rows: NDArray[np.uint8], codes: list[int]) -> None:
        """Add the patterns of `rows`, each a record of the tag with that code."""
        words, key = self.fixed(rows)
        crc = [google_crc32c.value(record.tobytes()) for record in (rows & ~self.free)[:, : self.length]]
        key = np.concatenate([self.key, key])
        order = np.argsort(key)
        self.key, self.pattern = key[order], np.concatenate([self.pattern, words])[order]
        self.crc = np.concatenate([self.crc, np.array(crc, np.uint32)])[order]
        self.code = np.concatenate([self.code, np.array(codes, np.int32)])[order]

    def find(self, words: NDArray[np.uint64], key: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """For each row, the index of the pattern with its hash, and whether the row matches it."""
        if not len(self.key):
            return np.zeros(len(key), np.intp), np.zeros(len(key), bool)
        if len(self.key) == 1:
            which = np.zeros(len(key), np.intp)
        else:
            which = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        return which, (words == self.pattern[which]).all(axis=1)

    def intact(self, rows: NDArray[np.uint8], which: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether the rows' checksums are right: that of their pattern, updated by each byte that may differ."""
        crc = self.crc[which]
        tables = position_tables(self.length)
        for at in np.flatnonzero(self.free[: self.length]):
            crc ^= tables[at][rows[:, at] & self.free[at]]
        stored = np.ascontiguousarray(rows[:, self.length : self.length + 4]).view("<u4")[:, 0]
        return np.asarray(unmask(stored) == crc)

    def fields(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Step, value and wall time of rows that match."""
        offsets = self.offsets
        step = np.zeros(len(rows), np.uint64)
        for k in range(offsets.step_bytes):
            step |= (rows[:, offsets.step + k] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * k)

        def column(at: int, kind: str) -> NDArray[np.generic]:
            return np.ascontiguousarray(rows[:, at : at + np.dtype(kind).itemsize]).view(kind)[:, 0]

        value = widen(column(offsets.value, DTYPES[offsets.dtype][0]), offsets.dtype)
        return step.view(np.int64), value, column(offsets.wall_time, "<f8").astype(np.float64)


class ScalarPatterns:
    """The patterns learned so far in a file. `code_of` gives the caller's code of a tag's bytes."""

    def __init__(self, code_of: Callable[[bytes], int]) -> None:
        self._code_of = code_of
        self._patterns: dict[int, list[RecordPattern]] = {}

    def read(self, batch: Batch) -> Scalars:
        """All records of the batch that match a pattern and their checksum."""
        n = len(batch.start)
        found = Scalars(np.zeros(n, bool), np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n), np.zeros(n))
        if n < FEW:
            return found
        lengths = np.minimum(batch.length, LONG).astype(np.uint16)
        order = np.argsort(lengths, kind="stable")
        borders = np.flatnonzero(np.diff(lengths[order])) + 1
        padded = np.frombuffer(batch.data + bytes(16), np.uint8)
        for group in np.split(order, borders):
            length = int(lengths[group[0]])
            if len(group) >= FEW and length < LONG:
                width = (length + 4 + 7) // 8 * 8
                rows = np.lib.stride_tricks.sliding_window_view(padded, width)[batch.start[group]]
                self._read_group(found, group, rows, length)
        return found

    def _read_group(self, found: Scalars, group: NDArray[np.intp], rows: NDArray[np.uint8], length: int) -> None:
        patterns = self._patterns.setdefault(length, [])
        for pattern in patterns:
            group, rows = _take(pattern, found, group, rows)
        for _ in range(TRIES):
            if not len(group):
                return
            offsets = _offsets(rows[0], length)
            if offsets is None:  # left to the caller
                group, rows = group[1:], rows[1:]
                continue
            pattern = next((known for known in patterns if known.offsets == offsets), None) or RecordPattern.of(
                offsets, length, rows.shape[1]
            )
            if all(pattern is not known for known in patterns):
                patterns.append(pattern)
            _, first, count = np.unique(pattern.fixed(rows)[1], return_index=True, return_counts=True)
            first = first[(count > 1) | (first == 0)][:MOST_NEW]  # what occurs once may well be of another pattern
            new = rows[[i for i in first if _offsets(rows[i], length) == offsets]]
            pattern.learn(new, [self._code_of(_tag(row[:length].tobytes())) for row in new])
            group, rows = _take(pattern, found, group, rows)


def _take(
    pattern: RecordPattern, found: Scalars, group: NDArray[np.intp], rows: NDArray[np.uint8]
) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """Enter the rows that match the pattern into `found`; return the others."""
    which, fits = pattern.find(*pattern.fixed(rows))
    if not fits.any():
        return group, rows
    some = rows[fits] if not fits.all() else rows
    intact = pattern.intact(some, which[fits])
    at = group[fits]
    found.known[at] = intact
    found.code[at] = pattern.code[which[fits]]
    found.step[at], found.value[at], found.wall_time[at] = pattern.fields(some)
    return group[~fits], rows[~fits]


def _tag(record: bytes) -> bytes:
    return bytes(EVENT.FromString(record).summary.value[0].tag)


def _offsets(row: NDArray[np.uint8], length: int) -> FieldOffsets | None:
    """Where the fields of an intact scalar event are; None if it is damaged, or not an event of exactly one scalar."""
    record = row[:length].tobytes()
    if masked(record) != int.from_bytes(row[length : length + 4].tobytes(), "little"):
        return None
    try:
        return _located(record)
    except (ValueError, IndexError, DecodeError):  # not protobuf, or a kind that is not read
        return None


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
