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

from postmortem.core.distinct import occurrences
from postmortem.readers.tensorboard.crc32c import position_tables, unmask
from postmortem.readers.tensorboard.event_proto import DTYPES, widen
from postmortem.readers.tensorboard.framing import payload_at
from postmortem.readers.tensorboard.scalar_record import scalar_record
from postmortem.readers.tensorboard.tfrecord import LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.scalar_record import FieldOffsets, ScalarRecord
    from postmortem.readers.tensorboard.tfrecord import Batch

FEW = 16
"""The fewest records of one length that are worth a pattern."""
MOST_NEW, TRIES = 256, 16
"""Patterns learned at a time, and how often: limits on what records that are no scalars can cost."""

_MIX = np.arange(1, LONG // 8 + 3, dtype=np.uint64) ** np.uint64(3) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
"""Factors of a hash; what it finds is compared word by word."""


class Scalars(NamedTuple):
    """Fields of the n records of a batch, valid where `known`. `code` is the caller's code of the tag."""

    known: NDArray[np.bool_]
    code: NDArray[np.int32]
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]


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
        lengths = np.minimum(batch.length, LONG).astype(np.uint16)
        order = np.argsort(lengths, kind="stable")
        borders = np.flatnonzero(np.diff(lengths[order])) + 1
        for group in np.split(order, borders):
            length = int(lengths[group[0]])
            if len(group) >= FEW and length < LONG:
                width = (length + 4 + 7) // 8 * 8
                rows = np.lib.stride_tricks.sliding_window_view(batch.padded, width)[batch.start[group]]
                self._read_group(found, group, rows, length)
        return found

    def _read_group(self, found: Scalars, group: NDArray[np.intp], rows: NDArray[np.uint8], length: int) -> None:
        patterns = self._patterns.setdefault(length, [])
        for pattern in patterns:
            group, rows = _take(pattern, found, group, rows)
        for _ in range(TRIES):
            if not len(group):
                return
            record = _record(rows[0], length)
            if record is None:  # left to the caller
                group, rows = group[1:], rows[1:]
                continue
            offsets = record.offsets
            pattern = next((known for known in patterns if known.offsets == offsets), None) or RecordPattern.of(
                offsets, length, rows.shape[1]
            )
            if all(pattern is not known for known in patterns):
                patterns.append(pattern)
            _, first, count = occurrences(pattern.fixed(rows)[1])
            first = first[(count > 1) | (first == 0)][:MOST_NEW]  # what occurs once may well be of another pattern
            new = [(i, record) for i in first if (record := _record(rows[i], length)) and record.offsets == offsets]
            pattern.learn(rows[[i for i, _ in new]], [self._code_of(record.tag) for _, record in new])
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


def _record(row: NDArray[np.uint8], length: int) -> ScalarRecord | None:
    """The record of `length` bytes and its checksum at the start of `row`, where it is an intact scalar."""
    payload = payload_at(row, 0, length)
    return scalar_record(payload.tobytes()) if payload is not None else None
