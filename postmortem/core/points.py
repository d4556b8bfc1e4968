"""Numbers of a log as columns."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from postmortem.core.distinct import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray


_PIECE = 1 << 13
_KEPT = 1 << 12
"""Points of which their order by tag and rank is kept: it takes as long to find as to use."""
_SORTED_AT_ONCE = 1 << 20
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class Points:
    """n numbers in order of arrival, as columns.

    `code` (int32[n] or uint16[n]) indexes `tags`; `step` int64[n]; `value` float64[n], NaN and infinities exact;
    `wall_time` float64[n], seconds since the epoch, NaN if unknown; `rank` int16[n], -1 if unknown.

    `epochs` are the points that the log places by an epoch although other rows of it count steps: their indices,
    rising, and the epoch of each, both int64[k]. Their `step` is the last one that was logged before them: it orders
    them among the others, but is not theirs.
    """

    def __init__(
        self, tags: list[str], code: NDArray[Any], step: Any, value: NDArray[np.float64], wall_time: Any, rank: Any
    ) -> None:
        self.tags, self.code = tags, code
        self._value = value
        self._by_tag: tuple[NDArray[Any], NDArray[np.int16], int] | None = None
        """Codes, ranks and number of tags by which the values are sorted; None if they are in order of arrival."""
        self._columns: dict[str, NDArray[Any]] = {"step": step, "wall_time": wall_time, "rank": rank}
        self._by_row: dict[str, NDArray[Any]] = {}
        self._count: NDArray[np.uint16] = np.empty(0, np.uint16)
        self.epochs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._sorted: tuple[NDArray[Any], NDArray[np.int16], NDArray[Any], NDArray[np.intp]] | None = None

    @classmethod
    def of_rows(
        cls,
        tags: list[str],
        code: NDArray[Any],
        value: NDArray[np.float64],
        count: NDArray[np.uint16],
        step: Any,
        wall_time: Any,
        rank: Any,
    ) -> Points:
        """Points of rows: the first `count[0]` are of one row, and so on.

        `step`, `wall_time` and `rank` have one cell per row. They take a fraction of the memory until a whole column is
        asked for.
        """
        points = cls(tags, code, np.empty(0), value, np.empty(0), np.empty(0))
        points._by_row = {"step": step, "wall_time": wall_time, "rank": rank}
        points._count = count
        return points

    def stored(self) -> tuple[Any, ...]:
        """The parts that `of_stored` makes the same points of."""
        return self.tags, self.code, self.value, self._columns, self._by_row, self._count, self.epochs

    @classmethod
    def of_stored(
        cls,
        tags: list[str],
        code: NDArray[Any],
        value: NDArray[np.float64],
        columns: dict[str, NDArray[Any]],
        by_row: dict[str, NDArray[Any]],
        count: NDArray[np.uint16],
        epochs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    ) -> Points:
        """Points of the parts that `stored` returned."""
        points = cls(tags, code, columns["step"], value, columns["wall_time"], columns["rank"])
        points._by_row, points._count, points.epochs = by_row, count, epochs
        return points

    def copy(self) -> Points:
        """The same points: names, columns and ranks of the copy may be set, the arrays are shared."""
        tags, code, value, columns, by_row, count, epochs = self.stored()
        return Points.of_stored([*tags], code, value, {**columns}, {**by_row}, count, epochs)

    def chosen(self, which: NDArray[np.bool_]) -> Points:
        """The points at which `which` bool[n] is true, with the same tags."""
        step, wall_time, rank = (self.take(name, which) for name in ("step", "wall_time", "rank"))
        points = Points(self.tags, self.code[which], step, self.value[which], wall_time, rank)
        if self.epochs is not None:
            index, epoch = self.epochs
            stays = which[index]
            points.epochs = (np.cumsum(which)[index[stays]] - 1, epoch[stays]) if stays.any() else None
        return points

    def with_tags_of(self, which: NDArray[np.bool_]) -> Points:
        """The points at which `which` bool[n] is true, with those tags alone that they have."""
        points = self.chosen(which)
        there = distinct(points.code)
        points.tags = [self.tags[code] for code in there]
        points.code = np.searchsorted(there, points.code).astype(np.int32)
        return points

    def epoch_of(self, which: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """int64[k]: the epochs of the points at the indices `which` (k,), None if the log does not place all by one."""
        if self.epochs is None or not len(which):
            return None
        index, epoch = self.epochs
        at = np.minimum(np.searchsorted(index, which), len(index) - 1)
        return epoch[at] if (index[at] == which).all() else None

    @property
    def printed_step(self) -> NDArray[np.int64]:
        """int64[n]: the steps, with the epoch for points that the log places by one."""
        if self.epochs is None:
            return self.step
        step = self.step.copy()
        step[self.epochs[0]] = self.epochs[1]
        return step

    @property
    def value(self) -> NDArray[np.float64]:
        """float64[n]: the numbers, NaN and infinities exact."""
        if self._by_tag is None:
            return self._value
        value = np.empty_like(self._value)
        value[_order(*self._by_tag)[0]] = self._value
        return value

    def sort_values(self, order: NDArray[np.intp]) -> NDArray[np.float64]:
        """The numbers in the order of `by_tag_and_rank`, in which they are stored from now on: series are slices of
        them, and a second copy would take as much as all else that is kept of the points. `value` is then put together
        again each time."""
        if self._by_tag is None:
            self._by_tag = self.code, self._ranks(), len(self.tags)
            self._value = self._value[order]
        return self._value

    @property
    def step(self) -> NDArray[np.int64]:
        """int64[n]: the training step of each point."""
        return self._whole("step")

    @property
    def wall_time(self) -> NDArray[np.float64]:
        """float64[n]: seconds since the epoch, NaN if unknown."""
        return self._whole("wall_time")

    @property
    def rank(self) -> NDArray[np.int16]:
        """int16[n]: the rank that logged each point, -1 if unknown."""
        return self._whole("rank")

    @rank.setter
    def rank(self, rank: NDArray[np.int16]) -> None:
        self._value, self._by_tag = self.value, None
        self._by_row.pop("rank", None)
        self._columns["rank"] = rank

    def _whole(self, name: str) -> NDArray[Any]:
        if name in self._by_row:
            self._columns[name] = spread(self._by_row.pop(name), self._count, len(self))
        return self._columns[name]

    def cells(self, name: Literal["step", "wall_time", "rank"]) -> NDArray[Any]:
        """The numbers that occur in a column, in order of arrival, where it does not matter how often: one cell per
        row or per point, as they are stored."""
        return self._by_row[name][self._count > 0] if name in self._by_row else self._columns[name]

    @cached_property
    def _row(self) -> NDArray[np.int32]:
        return spread(np.arange(len(self._count), dtype=np.int32), self._count, len(self))

    def pack(self) -> None:
        """Drop what was worked out to answer `take` faster; it is worked out again when it is needed."""
        self.__dict__.pop("_row", None)

    def take(self, name: Literal["step", "wall_time", "rank"], which: Any) -> Any:
        """A column at some places (an index, a slice or an array of either kind), without making the whole of it."""
        return self._by_row[name][self._row[which]] if name in self._by_row else self._columns[name][which]

    def __len__(self) -> int:
        return len(self.code)

    @classmethod
    def empty(cls) -> Points:
        """No points."""
        none = np.empty(0)
        return cls([], np.empty(0, np.int32), np.empty(0, np.int64), none, none, np.empty(0, np.int16))

    def by_tag_and_rank(self) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """Indices of the points by tag and rank, in order of arrival within each, and where each next pair begins.

        The indices are int32 where there are many: all of them are as large as the numbers otherwise.
        """
        ranks = self._ranks()
        if len(self.code) > _KEPT:
            return _order(self.code, ranks, len(self.tags))
        if self._sorted is None or self._sorted[0] is not self.code or not np.array_equal(self._sorted[1], ranks):
            self._sorted = self.code, ranks, *_order(self.code, ranks, len(self.tags))
        return self._sorted[2:]

    def _ranks(self) -> NDArray[np.int16]:
        """The rank of each point; one cell if all have the same."""
        by_row = self._by_row.get("rank", self._columns["rank"])
        return self.rank if len(by_row) and (by_row != by_row[0]).any() else by_row[:1]


def _order(code: NDArray[Any], rank: NDArray[np.int16], tags: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """See `Points.by_tag_and_rank`; `rank` has one cell for all points, or one for each."""
    lowest = int(rank.min(initial=0))
    width = int(rank.max(initial=lowest)) - lowest + 1
    # numpy sorts short numbers by counting
    kind = np.dtype(np.uint16 if tags * width <= 65_536 else np.int64)
    group = code.astype(kind)
    if width > 1:
        group *= kind.type(width)
        group += (rank.astype(np.int32) - lowest).astype(kind)
    if kind == np.uint16 and len(group) > _SORTED_AT_ONCE:
        return _sorted_in_pieces(group)
    order = np.argsort(group, kind="stable")
    group = group[order]
    return order, np.flatnonzero(group[1:] != group[:-1]) + 1


def _sorted_in_pieces(group: NDArray[np.uint16]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """The stable order of many small numbers, and where each next number begins, in a third of the memory of a sort.

    The place of a number is known beforehand: after all smaller ones, and after those of its own in earlier pieces.
    """
    pieces = [group[start : start + _SORTED_AT_ONCE] for start in range(0, len(group), _SORTED_AT_ONCE)]
    counts = [np.bincount(piece, minlength=int(group.max()) + 1) for piece in pieces]
    total = np.sum(counts, axis=0)
    place = np.cumsum(total) - total
    bounds = place[total > 0][1:]
    order = np.empty(len(group), np.int32)
    for k, (piece, count) in enumerate(zip(pieces, counts, strict=True)):
        within = np.argsort(piece, kind="stable")
        shift = place - (np.cumsum(count) - count)
        order[np.arange(len(piece)) + np.repeat(shift, count)] = within + k * _SORTED_AT_ONCE
        place += count
    return order, bounds


def spread(column: NDArray[Any], count: NDArray[Any], size: int) -> NDArray[Any]:
    """Each cell of the column `count` times, `size` in all; in pieces, as repeat() widens all counts to int64."""
    out = np.empty(size, column.dtype)
    at = 0
    for start in range(0, len(column), _PIECE):
        piece = np.repeat(column[start : start + _PIECE], count[start : start + _PIECE])
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


class PointsBuilder:
    """Collects points: `add` one by one, or `extend` by whole arrays of one tag; order is kept.

    >>> builder = PointsBuilder()
    >>> builder.add("loss", step=0, value=2.3)
    >>> builder.extend("lr", [0, 1], [1e-3, 1e-4])
    >>> points = builder.build()
    >>> points.tags, points.step.tolist(), points.value.tolist()
    (['loss', 'lr'], [0, 0, 1], [2.3, 0.001, 0.0001])
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows: list[tuple[int, int, float, float, int]] = []
        self._chunks: list[tuple[Any, ...]] = []

    def code(self, tag: str) -> int:
        """The number of a tag, its place in `Points.tags`; a new tag gets the next one."""
        return self._codes.setdefault(tag, len(self._codes))

    def add(self, tag: str, step: int, value: float, wall_time: float = np.nan, rank: int = -1) -> None:
        """One point."""
        self._rows.append((self.code(tag), step, value, wall_time, rank))

    def extend(self, tag: str, step: Any, value: Any, wall_time: Any = np.nan, rank: Any = -1) -> None:
        """Arrays of one tag; `wall_time` and `rank` may be scalars."""
        self._flush()
        self._chunks.append((np.full(len(step), self.code(tag)), _steps(step), value, wall_time, rank))

    def extend_columns(
        self, tags: list[str], code: Any, step: Any, value: Any, wall_time: Any = np.nan, rank: Any = -1
    ) -> None:
        """Arrays of several tags at once: `code` indexes `tags`."""
        self._flush()
        own = np.array([self.code(t) for t in tags], np.int32)
        self._chunks.append(
            (own[np.asarray(code)] if len(step) else np.empty(0, np.int32), _steps(step), value, wall_time, rank)
        )

    def _flush(self) -> None:
        if self._rows:
            code, step, value, wall, rank = zip(*self._rows, strict=True)
            self._chunks.append((code, _steps(step), value, wall, rank))
            self._rows = []

    def build(self) -> Points:
        """All points collected so far, as columns."""
        self._flush()

        def column(k: int, dtype: Any) -> Any:
            parts = [np.asarray(c[k], dtype) for c in self._chunks]
            if len(parts) == 1 and parts[0].ndim:
                return parts[0].copy()
            whole = [np.broadcast_to(part, len(c[1])) for part, c in zip(parts, self._chunks, strict=True)]
            return np.concatenate(whole) if whole else np.empty(0, dtype)

        return Points(
            list(self._codes),
            column(0, np.int32),
            column(1, np.int64),
            column(2, np.float64),
            column(3, np.float64),
            column(4, np.int16),
        )


def _steps(steps: Any) -> NDArray[np.int64]:
    """Steps as int64[n]. A damaged log may print one beyond that range: it becomes the limit of the range."""
    if not isinstance(steps, np.ndarray) or steps.dtype.kind not in "if":
        return np.array([_int64(step) for step in steps], np.int64)
    if steps.dtype.kind == "i":
        return steps.astype(np.int64, copy=False)
    with np.errstate(invalid="ignore"):
        whole: NDArray[np.int64] = steps.astype(np.int64)
    whole[steps >= _HIGHEST] = _HIGHEST
    whole[steps <= _LOWEST] = _LOWEST
    return whole


def _int64(step: float) -> int:
    if step != step:
        raise ValueError("a step is NaN")
    return int(max(_LOWEST, min(_HIGHEST, step)))
