"""What detectors see of a run: its surviving history as one series per quantity.

Overlapping steps of a restart are reduced to the history that survived, and the same number from two
sources counts once. The frame keeps everything.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Event
    from postmortem.core.timeline import Restart, Run, Stream


_MANY = 64
"""Series of one role in the other sources up to which each is compared; where there are more (one per layer), those of the same name."""


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of one rank over the surviving steps.

    `step` int64[n], not decreasing; `value` float64[n]; `wall_time` float64[n], seconds since the epoch or
    NaN. Arrays are shared and read-only.
    """

    tag: str
    role: str | None
    rank: int
    source: str
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def finite(self) -> Series:
        """The same series without its non-finite points."""
        ok = np.isfinite(self.value)
        return self if ok.all() else self.take(ok)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Series:
        """The same series with these rows only."""
        return Series(self.tag, self.role, self.rank, self.source, self.step[rows], self.value[rows], self.wall_time[rows])


@dataclass
class View:
    """A run as detectors see it. `series` are in order of first appearance of their tag."""

    run: Run
    events: list[Event] = field(default_factory=list)
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What several detectors need of the same series, worked out once."""

    def __post_init__(self) -> None:
        self.events = self.events or self.run.event_list

    @cached_property
    def series(self) -> list[Series]:
        """The surviving history, one series per quantity and rank, without the copies of a second source."""
        found = [s for stream in self.run.streams for s in _surviving(stream, self.run.roles)]
        return _merged(found)

    def of(self, *roles: str) -> list[Series]:
        """All series of these roles, by role in the order asked for, longest first within a role."""
        return [s for role in roles for s in sorted((s for s in self.series if s.role == role), key=len, reverse=True)]

    def main(self, *roles: str) -> Series | None:
        """The series that speaks for these roles: the longest of the first role there is, or None."""
        return next(iter(self.of(*roles)), None)

    def settings(self, *names: str) -> Iterator[tuple[str, float]]:
        """The finite numbers of the configuration under these names (the last part of a key, in small letters), in the order of `names`.

        Yields (the whole key as it is written, the number); a text that reads as a number counts.
        """
        by_name: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for key, value in self.run.config.items():
            value = value.get("value") if isinstance(value, dict) else value  # as W&B writes it
            by_name[re.split(r"[./]", str(key))[-1].lower()].append((str(key), value))
        for key, value in (entry for name in names for entry in by_name.get(name, ())):
            try:
                number = math.nan if isinstance(value, bool) else float(value)
            except (TypeError, ValueError, OverflowError):  # an integer of hundreds of digits is beyond any float
                continue
            if math.isfinite(number):
                yield key, number

    @cached_property
    def restarts(self) -> list[Restart]:
        """The places where the steps of any stream go back."""
        return [r for stream in self.run.streams for r in stream.restarts]

    @cached_property
    def last_step(self) -> int | None:
        """The largest step that any series of a known role reached; of any series where there is none."""
        known = [s for s in self.series if s.role not in (None, "epoch")] or self.series
        return max((int(s.step[-1]) for s in known if len(s)), default=None)

    @cached_property
    def first_step(self) -> int | None:
        """The smallest step of any series of a known role; of any series where there is none."""
        known = [s for s in self.series if s.role not in (None, "epoch")] or self.series
        return min((int(s.step[0]) for s in known if len(s)), default=None)


def _surviving(stream: Stream, roles: dict[str, str | None]) -> list[Series]:
    points = stream.points
    if not len(points):
        return []
    order, bounds = points.by_tag_and_rank()
    found = []
    for rows in np.split(order, bounds):
        step, segment = points.take("step", rows), stream.segment[rows]
        if segment[-1] > segment[0]:
            rows = rows[_survives(step, segment)]
            step = points.take("step", rows)
        if (step[1:] < step[:-1]).any():
            rows = rows[np.argsort(step, kind="stable")]
            step = points.take("step", rows)
        tag = points.tags[int(points.code[rows[0]])]
        series = Series(
            tag, roles.get(tag), int(points.take("rank", rows[0])), stream.source, step, points.value[rows], points.take("wall_time", rows)
        )
        for column in (series.step, series.value, series.wall_time):
            column.flags.writeable = False
        found.append((int(rows.min()), series))
    return [s for _, s in sorted(found, key=lambda f: f[0])]


def _survives(step: NDArray[np.int64], segment: NDArray[np.int16]) -> NDArray[np.bool_]:
    """True for points that no later segment of the same tag wrote again."""
    later = np.minimum.accumulate(step[::-1])[::-1]  # smallest step from here on
    last = np.searchsorted(segment, segment, side="right")  # first row of a later segment
    next_start = np.where(last < len(step), later[np.minimum(last, len(step) - 1)], np.iinfo(np.int64).max)
    return step < next_start


def _merged(found: list[Series]) -> list[Series]:
    """Joins the same quantity read from several sources: the most precise source, and what only another one saw."""
    kept = _Kept()
    for series in found:
        place = next((i for i in kept.candidates(series) if same_quantity(kept.series[i], series)), None)
        if place is None:
            kept.add(series)
        else:
            kept.series[place] = _join(kept.series[place], series)
    return kept.series


class _Kept:
    """Series, found again by what `same_quantity` asks first: a log may hold a hundred thousand of them."""

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
        """Places of series that may be the same quantity, in order; of one source it is the tag that tells."""
        elsewhere = [places for source, places in self._of_source[series.role or series.tag].items() if source != series.source]
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
    x, y = a.value[i], b.value[j]
    with np.errstate(invalid="ignore", over="ignore"):
        close = (np.abs(x - y) <= 5e-3 * np.maximum(np.abs(x), np.abs(y))) | (x == y) | (np.isnan(x) & np.isnan(y))
    return bool(close.mean() >= 0.9)


def _join(a: Series, b: Series) -> Series:
    """a with the points of b at steps that a does not have."""
    new = ~np.isin(b.step, a.step)
    if not new.any():
        return a
    step = np.concatenate([a.step, b.step[new]])
    order = np.argsort(step, kind="stable")
    value = np.concatenate([a.value, b.value[new]])[order]
    wall = np.concatenate([a.wall_time, b.wall_time[new]])[order]
    return Series(a.tag, a.role, a.rank, a.source, step[order], value, wall)
