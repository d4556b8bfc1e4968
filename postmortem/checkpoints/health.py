"""Health of saved weights: non-finite values, norms, and changes since the previous checkpoint.

A few threads read ranges of the files in chunks, so that a checkpoint of any size needs tens of MiB of memory.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from postmortem.checkpoints.chunks import CHUNK, Buffers, Files, Sums, compare, look, look_at_bytes
from postmortem.checkpoints.file_map import FileMap, map_files
from postmortem.checkpoints.formats.shared.pieces import Stamp, stamp_of
from postmortem.core.display import Displayed
from postmortem.core.errors import UnreadableCheckpoint
from postmortem.core.model import Problem
from postmortem.core.registry import collected_faults, report_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.checkpoints.formats.shared.pieces import Piece

_SPAN = 16 * CHUNK  # the bytes that a thread takes at a time
_NO_MATTER = ("rng", "best", "min_val", "max_val", "metric", "monitor")

Part = Literal["weights", "state", "record"]
_STATE = re.compile(r"optim|(^|[./])state[./]|exp_avg|momentum_buffer|sched|scaler|(^|[._/])rng|random", re.IGNORECASE)
_RECORD = re.compile(r"best|min_val|max_val|metric|monitor|loss|step$", re.IGNORECASE)


def part_of(name: str, numel: int) -> Part:
    """What a saved tensor belongs to, by its name.

    Either "weights", or "state" (of an optimizer, a scheduler, a scaler or a random generator), or "record": a single
    number beside them, such as the step or the best loss so far.
    """
    if numel == 1 and _RECORD.search(name):
        return "record"
    return "state" if _STATE.search(name) else "weights"


@dataclass(slots=True)
class TensorHealth:
    """One saved tensor.

    max_abs, norm: over its finite values. change: norm of the difference from the previous checkpoint, relative to the
    norm in that checkpoint (None: nothing to compare with).
    """

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
        """The number of non-finite values."""
        return self.nan + self.posinf + self.neginf

    @property
    def part(self) -> Part:
        """What the tensor belongs to."""
        return part_of(self.name, self.numel)

    @property
    def bad(self) -> bool:
        """Non-finite, except for intended values: masks of 0 and -inf, and records such as the best metric."""
        if not self.nonfinite:
            return False
        mask = not self.nan and not self.posinf and self.max_abs == 0.0
        record = self.numel == 1 and any(word in self.name.lower() for word in _NO_MATTER)
        return not mask and not record


@dataclass(slots=True, repr=False)
class Health(Displayed):
    """The health of a checkpoint.

    finite: True if every part could be read and no weight or state is non-finite; None if a part could not be read and
    the rest is finite.
    """

    path: str
    step: int | None
    tensors: list[TensorHealth]
    problems: list[Problem]
    nbytes: int = 0
    unverified: int = 0
    """Bytes in archives of more than 64 MiB, whose checksums were not compared."""
    finite: bool | None = field(init=False)

    def __post_init__(self) -> None:
        lost = not self.tensors or any("refused" not in p.what for p in self.problems)
        self.finite = None if lost else True
        if self.bad:
            self.finite = False

    def __repr__(self) -> str:
        """One line; `print` shows the full text, and so does a notebook."""
        verdict = {True: "finite", False: f"{len(self.bad)} non-finite", None: "not all readable"}[self.finite]
        return f"<Health {self.path!r}: step {self.step}, {len(self.tensors)} tensors, {verdict}>"

    @property
    def bad(self) -> list[TensorHealth]:
        """The tensors with unintended non-finite values."""
        return [t for t in self.tensors if t.bad]


def inspect(path: Path) -> Health:
    """The health of a checkpoint (a file or a folder), cached until one of its files changes.

    Damage is listed in `problems`; content never raises.
    """
    files = [Path(where, name) for where, _, names in os.walk(path) for name in names] or [path]
    states = tuple(sorted((str(file), stamp_of(file), _changed_at(file)) for file in files))
    seen, faults = _inspect(path, states)
    for fault in faults:
        report_fault(fault)
    return seen


def _changed_at(path: Path) -> int | None:
    """Time in ns of the last change of content or attributes, which no program can set; None if the file is gone."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _inspect(path: Path, states: tuple[tuple[str, Stamp, int | None], ...]) -> tuple[Health, list[Problem]]:
    """The health, and the faults of plugins that were met: those are reported each time that it is asked for."""
    with collected_faults() as faults:
        return health(path), faults


def health(path: Path, previous: Path | None = None, *, trust: bool = False, checksums: bool = False) -> Health:
    """The health of a checkpoint; with `previous`, how much each tensor changed since that one.

    `trust` unpickles everything: only for trusted files. `checksums` compares those of large archives as well.
    """
    found = map_files(path, trust=trust)
    if checksums:
        found.verify()
    before = map_files(previous, trust=trust) if previous is not None else FileMap()
    tensors = tensors_of(found, before)
    unverified = sum(nbytes for _, nbytes in found.unverified.values())
    return Health(str(path), found.step, tensors, found.problems, sum(p.nbytes for p in found.pieces), unverified)


@dataclass(slots=True)
class _Place:
    """The place of a tensor, or of a chunk of a sharded one, which may have several names (tied weights)."""

    pieces: list[Piece]
    before: Piece | None  # the same tensor in the previous checkpoint
    sums: Sums = field(default_factory=Sums)
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes `start` to `stop` of a place."""

    place: _Place
    start: int
    stop: int


def tensors_of(found: FileMap, previous: FileMap) -> list[TensorHealth]:
    """The health of every tensor of `found`, compared with those of `previous`. Adds to `found.problems`."""
    before = {(p.name, p.start): p for p in previous.pieces}
    groups: dict[tuple[Path, int, int], list[Piece]] = defaultdict(list)
    for p in found.pieces:
        if p.dtype.kind != "whole":
            groups[p.path, p.offset, p.nbytes].append(p)
    places = [
        _Place(pieces, _same(pieces[0], before.get((pieces[0].name, pieces[0].start)))) for pieces in groups.values()
    ]
    _look_at(places)
    unreadable = {place.problem.path: place.problem for place in reversed(places) if place.problem}
    changed, outdated = found.changed(), previous.changed()
    for path in sorted({place.pieces[0].path for place in places} & changed):
        what = "rewritten while it was read: check it again"
        unreadable.setdefault(str(path), Problem(path=str(path), what=what, lost="its tensors"))
    found.problems += unreadable.values()
    for place in places:
        if place.before is not None and place.before.path in outdated:
            place.before = None
    return list(_joined(place for place in places if not place.problem and place.pieces[0].path not in changed))


def _same(piece: Piece, old: Piece | None) -> Piece | None:
    """`old`, if the two can be compared element by element."""
    return old if old is not None and (old.nbytes, old.dtype) == (piece.nbytes, piece.dtype) else None


def _look_at(places: list[_Place]) -> None:
    """Fills `sums` of every place, or `problem` where it cannot be read."""
    ends = [(place, place.pieces[0].nbytes) for place in places]
    spans = deque(_Span(place, start, min(start + _SPAN, end)) for place, end in ends for start in range(0, end, _SPAN))
    if not spans:
        return
    workers = min(8, os.cpu_count() or 1, len(spans))  # more would compete for the cache
    with ThreadPoolExecutor(workers) as pool:
        try:
            work = [pool.submit(_work, spans) for _ in range(workers)]
            seen = chain.from_iterable(worker.result() for worker in work)
            # in order, so that the first problem is reported and the sums do not vary
            for span, what in sorted(seen, key=lambda one: one[0].start):
                if isinstance(what, Problem):
                    span.place.problem = span.place.problem or what
                else:
                    span.place.sums.add(what)
        finally:
            spans.clear()  # if a worker failed or Ctrl-C was pressed, the others stop


def _work(spans: deque[_Span]) -> list[tuple[_Span, Sums | Problem]]:
    """Takes spans until none is left. Returns the sums of each, or the problem if it cannot be read."""
    buffers, seen = Buffers(), list[tuple[_Span, Sums | Problem]]()
    with Files() as files, np.errstate(all="ignore"):
        while spans:
            try:
                span = spans.popleft()
            except IndexError:  # another thread took the last one
                break
            try:
                seen.append((span, _span(buffers, files, span)))
            except UnreadableCheckpoint as error:
                seen.append((span, error.problem))
    return seen


def _span(buffers: Buffers, files: Files, span: _Span) -> Sums:
    piece, old = span.place.pieces[0], span.place.before
    total = Sums()
    for start in range(span.start, span.stop, CHUNK):
        nbytes = min(CHUNK, span.stop - start)
        data = files.read(piece.path, piece.offset + start, nbytes, piece.dtype.itemsize, buffers.raw[0])
        if old is None and piece.dtype.itemsize == 1:
            total.add(look_at_bytes(data, piece.dtype))
            continue
        values, sums = look(data, piece.dtype, buffers.wide[0])
        if old is not None:
            data = files.read(old.path, old.offset + start, nbytes, old.dtype.itemsize, buffers.raw[1])
            compare(values, data, old.dtype, buffers.wide[1], sums)
        total.add(sums)
    return total


def _joined(places: Iterable[_Place]) -> Iterator[TensorHealth]:
    """One record per name: the chunks of a sharded tensor have one name and are added up."""
    by_name: dict[str, list[tuple[Piece, _Place]]] = defaultdict(list)
    for place in places:
        for piece in place.pieces:
            by_name[piece.name].append((piece, place))
    for name, parts in by_name.items():
        s = Sums()
        for _, place in parts:
            s.add(place.sums)
        piece, numel = parts[0][0], sum(math.prod(p.shape) for p, _ in parts)
        change = s.changed / s.before if s.before and all(place.before for _, place in parts) else None
        yield TensorHealth(
            name, piece.shape, piece.dtype.name, numel, s.nan, s.posinf, s.neginf, s.largest, s.norm, change
        )
