"""Health of saved weights: what is not finite, how large they are, what changed most since the checkpoint before.

Files are read in pieces of 1 MiB by a few threads, each piece reduced while it lies in the cache, so that a
checkpoint of any size takes tens of MiB of memory.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from postmortem.replay.layout import Layout, Piece, layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postmortem.core.model import Problem

CHUNK = 2**20  # fits the second-level cache
_SPAN = 16 * CHUNK  # what a thread takes at a time
_NO_MATTER = ("rng", "best", "min_val", "max_val", "metric", "monitor")


@dataclass(slots=True)
class TensorHealth:
    """One saved tensor. `max_abs` and `norm` are over its finite values; `change` is the norm of its difference to the
    checkpoint before, relative to that one's norm (None: nothing to compare with)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    numel: int
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    max_abs: float = 0.0
    norm: float = 0.0
    change: float | None = None

    @property
    def nonfinite(self) -> int:
        return self.nan + self.posinf + self.neginf

    @property
    def bad(self) -> bool:
        """Non-finite, and not meant so: masks of 0 and -inf, and records such as the best metric so far, are."""
        if not self.nonfinite:
            return False
        mask = not self.nan and not self.posinf and self.max_abs == 0.0
        record = self.numel == 1 and any(word in self.name.lower() for word in _NO_MATTER)
        return not mask and not record


@dataclass(slots=True)
class Health:
    """A checkpoint looked into. `finite`: every part could be read and no weight or state is non-finite; None where
    something could not be read and the rest is finite."""

    path: str
    step: int | None
    tensors: list[TensorHealth]
    problems: list[Problem]
    nbytes: int = 0
    finite: bool | None = field(init=False)

    def __post_init__(self) -> None:
        bad = any(t.bad for t in self.tensors)
        lost = not self.tensors or any("refused" not in p.what for p in self.problems)
        self.finite = False if bad else None if lost else True

    @property
    def bad(self) -> list[TensorHealth]:
        return [t for t in self.tensors if t.bad]


@functools.lru_cache(maxsize=64)
def inspect(path: Path) -> Health:
    """The health of a checkpoint, file or folder, remembered. Damage is in `problems`; nothing is raised for content."""
    return health(path)


def health(path: Path, previous: Path | None = None) -> Health:
    """The health of a checkpoint; with `previous`, how much each tensor changed since that one."""
    found = layout(path)
    before = {p.name: p for p in layout(previous).pieces} if previous is not None else {}
    before = {n: p for n, p in before.items() if p.path.exists()}
    tensors = _scan(found, before)
    return Health(str(path), found.step, tensors, found.problems, sum(p.nbytes for p in found.pieces))


@dataclass(slots=True)
class _Sums:
    """Reductions over one chunk, or over the chunks of one tensor."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    largest: float = 0.0
    squares: float = 0.0
    changed: float = 0.0
    squares_before: float = 0.0

    def add(self, other: _Sums) -> None:
        self.nan += other.nan
        self.posinf += other.posinf
        self.neginf += other.neginf
        self.largest = max(self.largest, other.largest)
        self.squares += other.squares
        self.changed += other.changed
        self.squares_before += other.squares_before


def _scan(found: Layout, before: dict[str, Piece]) -> list[TensorHealth]:
    pieces = [p for p in found.pieces if p.dtype.is_floating_point or p.dtype.is_complex]
    # what two names share (tied weights) is read once
    groups: dict[tuple[Path, int, int], list[Piece]] = defaultdict(list)
    for p in pieces:
        groups[(p.path, p.offset, p.nbytes)].append(p)
    jobs = [(key, p[0], start, min(_SPAN, p[0].nbytes - start)) for key, p in groups.items() for start in range(0, p[0].nbytes, _SPAN)]
    sums: dict[tuple[Path, int, int], _Sums] = {key: _Sums() for key in groups}
    workers = max(1, min(8, (os.cpu_count() or 1) + 1, len(jobs)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _Reader() as reader, ThreadPoolExecutor(workers) as pool:
            work = functools.partial(_job, reader, before)
            for (key, *_), part in zip(jobs, pool.map(work, jobs), strict=True):
                sums[key].add(part)
    finally:
        torch.set_num_threads(threads)
    return list(_joined(groups, sums, before))


def _joined(
    groups: dict[tuple[Path, int, int], list[Piece]], sums: dict[tuple[Path, int, int], _Sums], before: dict[str, Piece]
) -> Iterator[TensorHealth]:
    """One record per tensor: chunks of a sharded tensor have one name and are added up."""
    by_name: dict[str, tuple[Piece, int, _Sums]] = {}
    for key, pieces in groups.items():
        for p in pieces:
            piece, numel, total = by_name.setdefault(p.name, (p, 0, _Sums()))
            total.add(sums[key])
            by_name[p.name] = piece, numel + math.prod(p.shape), total
    for name, (piece, numel, s) in by_name.items():
        comparable = name in before and before[name].nbytes == piece.nbytes and before[name].dtype == piece.dtype
        change = math.sqrt(s.changed) / max(math.sqrt(s.squares_before), 1e-30) if comparable and s.squares_before else None
        yield TensorHealth(
            name, piece.shape, str(piece.dtype).removeprefix("torch."), numel, s.nan, s.posinf, s.neginf, s.largest, math.sqrt(s.squares), change
        )


class _Reader:
    """Reads ranges of files into buffers that each thread keeps, and closes what it opened."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._opened: list[int] = []

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._opened:
            os.close(handle)

    def read(self, path: Path, offset: int, nbytes: int, slot: int) -> torch.Tensor:
        """uint8[nbytes], valid until this thread reads into the same slot again. EOFError where the file ends early."""
        files = self._local.__dict__.setdefault("files", {})
        if path not in files:
            files[path] = os.open(path, os.O_RDONLY)
            self._opened.append(files[path])
        buffers = self._local.__dict__.setdefault("buffers", {})
        if slot not in buffers:
            buffers[slot] = bytearray(CHUNK)
        view = memoryview(buffers[slot])[:nbytes]
        done = 0
        while done < nbytes:
            got = os.preadv(files[path], [view[done:]], offset + done)
            if not got:
                raise EOFError(f"{path} ends within a tensor")
            done += got
        return torch.frombuffer(buffers[slot], dtype=torch.uint8, count=nbytes)


def _job(reader: _Reader, before: dict[str, Piece], job: tuple[object, Piece, int, int]) -> _Sums:
    _, piece, start, nbytes = job
    total = _Sums()
    for at in range(start, start + nbytes, CHUNK):
        total.add(_chunk(reader, before, piece, at, min(CHUNK, start + nbytes - at)))
    return total


def _chunk(reader: _Reader, before: dict[str, Piece], piece: Piece, start: int, nbytes: int) -> _Sums:
    data = reader.read(piece.path, piece.offset + start, nbytes, 0)
    sums = _reduce(data, piece.dtype)
    old = before.get(piece.name)
    if old is not None and old.nbytes == piece.nbytes and old.dtype == piece.dtype:
        values = _real(data, piece.dtype).double()
        other = _real(reader.read(old.path, old.offset + start, nbytes, 1), old.dtype).double()
        sums.changed = float(torch.nan_to_num(values - other, 0.0, 0.0, 0.0).square().sum())
        sums.squares_before = float(torch.nan_to_num(other, 0.0, 0.0, 0.0).square().sum())
    return sums


def _real(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = data.view(dtype)
    if values.is_complex():
        values = torch.view_as_real(values).flatten()
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _reduce(data: torch.Tensor, dtype: torch.dtype) -> _Sums:
    """One pass for the squares, one for the largest value; both are finite only if all values are."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares, largest = _bfloat16(data) if dtype == torch.bfloat16 else _float(_real(data, dtype))
    if math.isfinite(squares) and math.isfinite(largest):
        return _Sums(largest=largest, squares=squares)
    values = _real(data, dtype)
    finite = torch.nan_to_num(values.double(), 0.0, 0.0, 0.0)
    return _Sums(
        nan=int(torch.isnan(values).sum()),
        posinf=int(torch.isposinf(values).sum()),
        neginf=int(torch.isneginf(values).sum()),
        largest=float(finite.abs().max()),
        squares=float(finite.square().sum()),
    )


def _float(values: torch.Tensor) -> tuple[float, float]:
    array = values.numpy()
    return float(np.dot(array, array)), max(float(array.max()), -float(array.min()))


def _bfloat16(data: torch.Tensor) -> tuple[float, float]:
    """Squares and largest value by the bits: a bfloat16 is the upper half of a float32, and without its sign orders as an integer.

    Half as many instructions as converting first, as each 32-bit word holds two values.
    """
    bits = data.numpy().view(np.uint16)
    words = bits[: len(bits) // 2 * 2].view(np.uint32)
    spread = np.empty(len(words), np.uint32)
    squares = float(_real(data[-2:], torch.bfloat16).square()) if len(bits) % 2 else 0.0
    for half in (np.bitwise_and(words, np.uint32(0xFFFF0000), out=spread), np.left_shift(words, np.uint32(16), out=spread)):
        values = half.view(np.float32)
        squares += float(np.dot(values, values))
    largest = np.array([(bits & np.uint16(0x7FFF)).max()], np.uint32) << np.uint32(16)
    return squares, float(largest.view(np.float32)[0])
