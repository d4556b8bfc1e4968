"""One chunk of a saved tensor: read, and reduced while it is in the cache.

A chunk is read so that it lies within a cache line as it does in the file: where the two differ, as they do for most
tensors of a safetensors file, some processors copy at a sixth of the speed. Files are read, not mapped: one that is
truncated meanwhile must end in a message, and access to a mapped page that no longer exists would end the process.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.errors import UnreadableCheckpoint
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from postmortem.checkpoints.formats.shared.dtypes import Dtype

    Bytes = NDArray[np.uint8]
    Values = NDArray[np.floating[Any]]

CHUNK = 2 * 2**20  # with smaller ones threads wait for the interpreter more often; larger ones do not fit the cache
_LINE = 64  # bytes of a cache line
_PAGE = 2 * 2**20  # bytes of a huge page
_OPEN = 8  # files that a thread keeps open
_ROW = 8192  # BLAS spreads products of more than 10,000 numbers over threads of its own, which compete with ours
_ROWS = 512  # numpy lets other threads run during products of more than 500 rows only
_TINY = 1e-24  # float32 squares of which less than this is left may have underflowed
_NUMPY: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
_HALF_BITS = np.int32(-0x70002000)  # of a float16 shifted to the place of a float32: the sign and the last 15 bits


@dataclass(slots=True)
class Sums:
    """The sums of one or more chunks: `largest` and `norm` are over the finite values, `changed` is the norm of the
    difference to the previous checkpoint, `before` the norm of the previous checkpoint."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    largest: float = 0.0
    norm: float = 0.0
    changed: float = 0.0
    before: float = 0.0

    def add(self, other: Sums) -> None:
        """Adds the sums of another chunk."""
        self.nan += other.nan
        self.posinf += other.posinf
        self.neginf += other.neginf
        self.largest = max(self.largest, other.largest)
        self.norm = math.hypot(self.norm, other.norm)
        self.changed = math.hypot(self.changed, other.changed)
        self.before = math.hypot(self.before, other.before)


class Buffers:
    """The buffers of one thread: for two chunks, and for 16-bit numbers widened to 32 bits."""

    def __init__(self) -> None:
        # one array, for which numpy requests huge pages: faults of small pages took a tenth of the time for a GiB
        memory = np.empty(8 * CHUNK + _PAGE, np.uint8)
        halves = memory[-memory.ctypes.data % _PAGE :][: 8 * CHUNK].reshape(2, 4 * CHUNK)
        self.raw = [half[: CHUNK + _LINE] for half in halves]
        self.wide = [half[2 * CHUNK :].view(np.float32) for half in halves]


class Files:
    """Files that are opened at the first read and closed together: at the end, or when there are too many."""

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def _open(self, path: Path) -> int:
        if path not in self._handles:
            if len(self._handles) == _OPEN:
                self._close()
            self._handles[path] = os.open(path, os.O_RDONLY)
        return self._handles[path]

    def read(self, path: Path, offset: int, nbytes: int, itemsize: int, raw: Bytes) -> Bytes:
        """uint8[nbytes], a view of `raw`. Raises UnreadableCheckpoint if the file is too short or cannot be read."""
        start = offset % _LINE if offset % itemsize == 0 else 0
        data, done = raw[start : start + nbytes], 0
        try:
            handle = self._open(path)
            while done < nbytes:
                got = os.preadv(handle, [data.data[done:]], offset + done)
                if not got:
                    raise _unreadable(path, "truncated while it was read", offset + done)
                done += got
        except OSError as error:
            raise _unreadable(path, f"cannot be read: {error.strerror}", offset + done) from error
        return data


def _unreadable(path: Path, what: str, offset: int) -> UnreadableCheckpoint:
    return UnreadableCheckpoint(Problem(path=str(path), what=what, offset=offset, lost="the tensors there"))


def look(data: Bytes, dtype: Dtype, wide: Values) -> tuple[Values, Sums]:
    """The real numbers in `data` as float32 or float64, and their sums. 16-bit numbers are widened into `wide`."""
    real = dtype.real
    if real.itemsize == 2:
        largest = _largest_of_16_bits(data, real)  # first: the wider numbers evict `data` from the cache
        values = widened(data, dtype, wide, finite=math.isfinite(largest))
    else:
        values = widened(data, dtype, wide)
        largest = _largest(values)
    if math.isfinite(largest):
        return values, Sums(largest=largest, norm=_norm(values) if largest else 0.0)
    finite = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    infinite = np.isinf(values)
    above = int(np.count_nonzero(values[infinite] > 0))
    below = int(np.count_nonzero(infinite)) - above
    return values, Sums(int(np.count_nonzero(np.isnan(values))), above, below, _largest(finite), _norm(finite))


def look_at_bytes(data: Bytes, dtype: Dtype) -> Sums:
    """As `look`, for 8-bit types, from the counts of the 256 values."""
    counts, table = np.bincount(data, minlength=256), _table(dtype).astype(np.float64)
    nan, posinf, neginf = (
        int(counts[which].sum()) for which in (np.isnan(table), np.isposinf(table), np.isneginf(table))
    )
    there = np.isfinite(table) & (counts > 0)
    largest = float(np.abs(table[there]).max(initial=0.0))
    return Sums(nan, posinf, neginf, largest, norm=math.sqrt(counts[there] @ table[there] ** 2))


def compare(values: Values, data: Bytes, dtype: Dtype, wide: Values, sums: Sums) -> None:
    """Adds to `sums` the difference between `values`, which are overwritten, and those in `data`."""
    other = widened(data, dtype, wide)
    sums.before = _norm(other)
    sums.changed = _norm(np.subtract(values, other, out=values))


def widened(data: Bytes, dtype: Dtype, wide: Values, *, finite: bool = False) -> Values:
    """The real numbers in `data` as float32 or float64; 16-bit ones are written into `wide`. `finite`: all are."""
    real = dtype.real
    if real.name in _NUMPY:
        return data.view(_NUMPY[real.name])
    if real.itemsize == 1:
        return _table(real).take(data)
    values = wide[: len(data) // 2]
    bits = values.view(np.int32)
    if real.name == "bfloat16":  # the upper half of a float32
        np.left_shift(data.view(np.int16), np.int32(16), out=bits, dtype=np.int32)
    elif finite or math.isfinite(_largest_of_16_bits(data, real)):  # three times as fast as numpy's own conversion
        np.left_shift(data.view(np.int16), np.int32(13), out=bits, dtype=np.int32)
        np.bitwise_and(bits, _HALF_BITS, out=bits)
        np.multiply(values, np.float32(2.0**112), out=values)  # the exponents' biases are 15 and 127
    else:
        np.copyto(values, data.view(np.float16))
    return values


def _largest(values: Values) -> float:
    """The largest magnitude; NaN or infinite if any value is."""
    return max(float(values.max()), -float(values.min()))


def _largest_of_16_bits(data: Bytes, dtype: Dtype) -> float:
    """The same from the bits, which without the sign bit sort like the magnitudes: half as many bytes to read."""
    bits = max(int(np.maximum.reduce(data.view(np.int16))), int(np.maximum.reduce(data.view(np.uint16))) & 0x7FFF)
    if dtype.name == "bfloat16":  # the upper half of a float32
        return float(np.uint32(bits << 16).view(np.float32))
    return float(np.uint16(bits).view(np.float16))


def _norm(values: Values) -> float:
    """The euclidean norm of the finite values, whatever their scale."""
    squares = _squares(values)
    if _TINY < squares < math.inf:
        return math.sqrt(squares)
    if not values.any():
        return 0.0
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    scale = _largest(finite)
    finite /= scale or 1.0
    return scale * math.sqrt(_squares(finite))


def _squares(values: Values) -> float:
    row = min(max(len(values) // _ROWS, _ROW // 32), _ROW)
    rows = values[: len(values) // row * row].reshape(-1, 1, row)
    rest = values[rows.size :]
    return float((rows @ rows.transpose(0, 2, 1)).sum(dtype=np.float64)) + float(rest @ rest)


@functools.cache
def _table(dtype: Dtype) -> Values:
    """float32[256]: the value of each byte in an 8-bit type, by torch: few checkpoints have such types."""
    import torch

    table: Values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype.name)).float().numpy()
    return table
