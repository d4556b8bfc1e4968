"""Joins the points that several sources and restarts of a run logged of the same metric."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.series import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.run import Stream


_MOST_ALIKE = 4
_SHORT = 1024
"""Cells whose bytes are compared sooner than the array is asked whether all are equal."""
_MANY = 64
"""Up to this many series of one role in the other sources, each is compared; if there are more (one per layer), only
those of the same name."""


def surviving(stream: Stream, roles: dict[str, str | None]) -> list[Series]:
    """One series per tag and rank of a stream, by step, without the points that a later restart logged again."""
    return _series(stream, roles, again=False)


def overwritten(stream: Stream, roles: dict[str, str | None]) -> list[Series]:
    """The same of only those points that a later restart logged again."""
    return _series(stream, roles, again=True)


def _series(stream: Stream, roles: dict[str, str | None], *, again: bool) -> list[Series]:
    points = stream.points
    if not len(points):
        return []
    order, bounds = points.by_tag_and_rank()
    found = []
    columns: dict[tuple[float, ...], list[NDArray[Any]]] = {}
    values = points.sort_values(order) if not stream.restarts else None
    for start, end in pairwise([0, *bounds.tolist(), len(order)]):
        rows = order[start:end]
        step = points.take("step", rows)
        value = points.value[rows] if values is None else values[start:end]
        segment = stream.segment[rows] if stream.restarts else None
        restarted = segment is not None and segment[-1] > segment[0]
        if segment is not None and restarted:
            stays = _survives(step, segment) != again
            rows, value = rows[stays], value[stays]
            step = points.take("step", rows)
        if (again and not restarted) or not len(rows):
            continue
        first = int(rows[0])
        if (step[1:] < step[:-1]).any():
            by_step = np.argsort(step, kind="stable")
            rows, value = rows[by_step], value[by_step]
            step = points.take("step", rows)
        tag = points.tags[int(points.code[rows[0]])]
        rank, wall_time = int(points.take("rank", rows[0])), points.take("wall_time", rows)
        step, wall_time = _once(step, columns), _once(wall_time, columns)
        epoch = points.epoch_of(rows)
        series = Series(tag, roles.get(tag), rank, stream.source, step, value, wall_time, epoch)
        for column in (series.step, series.value, series.wall_time):
            column.flags.writeable = False
        found.append((first, series))
    return [s for _, s in sorted(found, key=lambda f: f[0])]


def _once(column: NDArray[Any], known: dict[tuple[float, ...], list[NDArray[Any]]]) -> NDArray[Any]:
    """The same column of another series, where one is equal bit for bit: most tags are logged at the same steps."""
    bits = column.view(np.int64) if column.dtype == np.float64 else column  # a NaN is equal to itself
    alike = known.setdefault((len(bits), int(bits[0]), int(bits[len(bits) // 2]), int(bits[-1])), [])
    same = next(
        (
            other
            for other in alike[:_MOST_ALIKE]
            if other.dtype == column.dtype and _equal(other.view(bits.dtype), bits)
        ),
        None,
    )
    if same is None:
        alike.append(column)
    return column if same is None else same


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two columns of one length and type are the same."""
    return a.tobytes() == b.tobytes() if len(a) < _SHORT else bool((a == b).all())


def _survives(step: NDArray[np.int64], segment: NDArray[np.int16]) -> NDArray[np.bool_]:
    """True for points that no later segment of the same tag wrote again."""
    later = np.minimum.accumulate(step[::-1])[::-1]  # smallest step from here on
    last = np.searchsorted(segment, segment, side="right")  # first row of a later segment
    found: NDArray[np.bool_] = (last == len(step)) | (step < later[np.minimum(last, len(step) - 1)])
    return found


def merged(found: list[Series]) -> list[Series]:
    """Joins series of the same quantity: the one of the most precise source, with the points that only others have."""
    if len({series.source for series in found}) <= 1 and len({(s.tag, s.rank) for s in found}) == len(found):
        return found  # of one source, each is another quantity
    index = _SeriesIndex()
    for series in found:
        place = next((i for i in index.candidates(series) if same_quantity(index.series[i], series)), None)
        if place is None:
            index.add(series)
        else:
            index.series[place] = _join(index.series[place], series)
    return index.series


class _SeriesIndex:
    """Series indexed by what `same_quantity` compares first, as a log may hold a hundred thousand of them."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self._of_tag: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._of_source: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._of_end: dict[tuple[str, str], list[int]] = defaultdict(list)

    def add(self, series: Series) -> None:
        place = len(self.series)
        self.series.append(series)
        self._of_tag[series.source, series.tag].append(place)
        self._of_source[series.role or series.tag][series.source].append(place)
        self._of_end[series.role or series.tag, series.tag.rsplit("/", 1)[-1]].append(place)

    def candidates(self, series: Series) -> list[int]:
        """Indices of series that may be the same quantity, in order; within one source the tag decides."""
        by_source = self._of_source[series.role or series.tag]
        elsewhere = [places for source, places in by_source.items() if source != series.source]
        places = self._of_tag[series.source, series.tag]
        if sum(map(len, elsewhere)) <= _MANY:
            return sorted({*places, *(i for found in elsewhere for i in found)})
        return sorted({*places, *self._of_end[series.role or series.tag, series.tag.rsplit("/", 1)[-1]]})


def same_quantity(a: Series, b: Series) -> bool:
    """Whether b is another record of a: the same role and rank, other source, and equal where both have a step.

    Equal is: to the digits that the coarser of the two shows, here 3 significant ones, in 9 of 10 steps.
    """
    if (a.source == b.source and a.tag != b.tag) or a.role != b.role or (a.role is None and a.tag != b.tag):
        return False
    if -1 not in (a.rank, b.rank) and a.rank != b.rank:
        return False
    if a.source == b.source:
        return a.rank == b.rank and a.tag == b.tag
    common, i, j = np.intersect1d(a.step, b.step, return_indices=True)
    if not len(common):
        return a.tag.rsplit("/", 1)[-1] == b.tag.rsplit("/", 1)[-1]
    return bool(close_values(a.value[i], b.value[j]).mean() >= 0.9)


def close_values(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool (n,): where two records of a value agree to the digits that the coarser shows, here 3 significant ones."""
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(x - y) <= 5e-3 * np.maximum(np.abs(x), np.abs(y))
    close: NDArray[np.bool_] = near | (x == y) | (np.isnan(x) & np.isnan(y))
    return close


def _join(a: Series, b: Series) -> Series:
    """a with the points of b at steps that a does not have."""
    new = ~np.isin(b.step, a.step)
    if not new.any():
        return a
    step = np.concatenate([a.step, b.step[new]])
    order = np.argsort(step, kind="stable")
    value = np.concatenate([a.value, b.value[new]])[order]
    wall = np.concatenate([a.wall_time, b.wall_time[new]])[order]
    epoch = None
    if a.epoch is not None and b.epoch is not None:
        epoch = np.concatenate([a.epoch, b.epoch[new]])[order]
    return Series(a.tag, a.role, a.rank, a.source, step[order], value, wall, epoch)
