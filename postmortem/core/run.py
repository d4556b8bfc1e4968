"""A run's numbers and events: columns internally, pandas DataFrames for users.

The columns are concatenated once; `frame` and `events` are built on first access, so that a scan does not need
pandas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.display import HOOKS, Displayed, plot
from postmortem.core.errors import UsageError, did_you_mean
from postmortem.core.objective import presumed
from postmortem.core.roles import role_of, roles_of
from postmortem.core.skipped import Skips
from postmortem.core.stats import median

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from postmortem.core.culprit import Watched
    from postmortem.core.launched import Captured, Launched
    from postmortem.core.model import Checkpoint, Ended, Event, Problem, Source
    from postmortem.core.objective import Presumption
    from postmortem.core.points import Points
    from postmortem.core.reading import Reading
    from postmortem.core.series import Series

EVENT_COLUMNS = ("run", "source", "rank", "step", "wall_time", "file", "line", "kind", "severity", "message", "fields")


@dataclass(frozen=True, slots=True)
class Stream:
    """Numbers written in order by one writer: restarts are detected within a stream."""

    source: str
    name: str
    points: Points
    segment: NDArray[np.int16]
    """int16[n]: 0, 1, … increases each time a restart makes the steps go back."""
    restarts: tuple[Restart, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """The steps went back: `before` is the last step of the tag, `after` the first of the new segment."""

    tag: str
    rank: int
    before: int
    after: int
    wall_time: float
    row: int


_NO_RESTART = bytes(2)
NO_TAG = "role: no tag "
"""How a note begins on a role that was given to a tag which the run does not have."""


def without_tag(roles: Mapping[str, str], tags: Collection[str]) -> list[str]:
    """A note on each tag of `roles` that is none of the run's `tags`."""
    return [f"{NO_TAG}{tag!r}{did_you_mean(tag, tags)}" for tag in roles if tag not in tags]


_NEAR, _FEW, _FAR = 12, 4, 10
"""Rows before a step that may be misread, how many of them tell the usual distance, and how many of it are too far."""


def segments(points: Points) -> tuple[NDArray[np.int16], tuple[Restart, ...]]:
    """Splits a stream where a restart made its steps go back -> (segment int16[n], restarts).

    A step that goes back is a restart where the tag's following step does not pass the old one again (a row
    out of order is none, nor is one step far above its neighbours). Tags with a known role decide where there are any:
    counters and scores are often logged late or twice. Each later drop of another tag belongs to the same restart.
    """
    n = len(points)
    # most streams have no restart: one cell for all, which cannot be written
    segment: NDArray[np.int16] = np.ndarray(n, np.int16, _NO_RESTART, strides=(0,))
    order, borders = points.by_tag_and_rank()
    same = np.ones(max(n - 1, 0), bool)
    same[borders - 1] = False
    step = points.take("step", order)
    fell = np.flatnonzero(same & (step[1:] < step[:-1])) + 1
    if not len(fell):
        return segment, ()
    known = np.array([role_of(t) is not None for t in points.tags], bool)
    deciding = known if known.any() else np.ones(len(points.tags), bool)
    drops: list[tuple[int, int, int]] = []  # row, row of the same tag before it, its code
    for k in fell:
        back_again = k + 1 < n and same[k] and step[k + 1] > step[k - 1]
        stray = k > 1 and same[k - 2] and step[k - 2] <= step[k] and _is_far(step, int(k) - 1, same)
        if deciding[points.code[order[k]]] and not back_again and not stray:
            drops.append((int(order[k]), int(order[k - 1]), int(points.code[order[k]])))
    restarts: list[Restart] = []
    start = 0
    for row, before, code in sorted(drops):
        if before < start:
            continue
        start = row
        segment = segment if segment.flags.writeable else segment.copy()
        segment[row:] += 1
        restarts.append(
            Restart(
                points.tags[code],
                int(points.take("rank", row)),
                int(points.take("step", before)),
                int(points.take("step", row)),
                float(points.take("wall_time", row)),
                row,
            )
        )
        if len(restarts) == 32_000:  # int16; nothing restarts that often
            break
    return segment, tuple(restarts)


def _is_far(step: NDArray[np.int64], row: int, same: NDArray[np.bool_]) -> bool:
    """Whether a step is so many usual ones above the row before that it is misread: the ten rows before tell."""
    before = np.arange(max(0, row - _NEAR), row - 1)
    near = step[max(0, row - _NEAR) : row + 1].astype(np.float64)  # the difference of two steps may be beyond int64
    gaps = np.diff(near[:-1])[same[before]]
    return len(gaps) >= _FEW and bool(near[-1] - near[-2] > _FAR * max(1.0, median(gaps)))


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Run(Displayed):
    """One training run as it was read: its numbers and what is known about it. Created by `postmortem.load`.

    `frame` and `events` are pandas DataFrames, described in docs/formats.md. `problems` lists what could not be read.
    """

    name: str
    path: Path
    streams: list[Stream]
    event_list: list[Event]
    problems: list[Problem]
    sources: list[Source]
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    ended: Ended = "unknown"
    step_axis: str = "step"
    """What `step` counts: "row" if no source logs a step, "epoch" if all count epochs, else "step"."""
    notes: list[str] = field(default_factory=list)
    skipped: Skips = field(default_factory=Skips)
    """How many values were left out, by reason."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    role_overrides: dict[str, str] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    """What each file holds, without its points."""
    launched: Launched | None = None
    """The command that started it, where its files say it."""
    script: Launched | None = None
    """Where they do not: a call of the only training script that lies with it."""
    recipe: bool = False
    """Whether a recipe.py lies in its folder or beside it."""
    captures: list[Captured] = field(default_factory=list)
    """The steps of it that `postmortem run` captured, the newest first."""
    watched: Watched | None = None
    """What `postmortem run` noted of it when it had ended."""
    reload: Callable[[], Run] | None = None
    """Reads it again, see `refresh`."""
    url: str = ""
    """Where it was copied from, if it was."""

    def __repr__(self) -> str:
        """One line: what it is made of; the numbers are in `frame`."""
        sources = ", ".join(f"{s.kind} {s.points}" for s in self.sources) or "no sources"
        points, events, problems = f"{self.n_points} points ({sources})", len(self.event_list), len(self.problems)
        return f"<Run {self.name!r}: {points}, {events} events, {problems} problems, {self.ended}>"

    @property
    def n_points(self) -> int:
        """Number of values in all streams."""
        return sum(len(s.points) for s in self.streams)

    @cached_property
    def roles(self) -> dict[str, str | None]:
        """Maps each tag to its role, or None if unknown, in order of first appearance. Includes `presumed`."""
        return self._named_roles | {tag: found.role for tag, found in self.presumed.items()}

    @cached_property
    def by_epoch(self) -> frozenset[str]:
        """The tags whose `step` is an epoch, in a run that else counts steps: the log prints no step beside them."""
        found: set[str] = set()
        for points in (s.points for s in self.streams if s.points.epochs is not None):
            count = np.bincount(points.code, minlength=len(points.tags))
            placed = np.bincount(points.code[points.epochs[0]], minlength=len(points.tags))  # type: ignore[index]
            found |= {t for t, n, k in zip(points.tags, count.tolist(), placed.tolist(), strict=True) if n == k > 0}
        return frozenset(found)

    @cached_property
    def presumed(self) -> dict[str, Presumption]:
        """Maps tags to the reason why they look like the objective, if no tag of the run is named as a loss."""
        roles = {tag: role for tag, role in self._named_roles.items() if tag not in self.role_overrides}
        return {} if "loss" in self.role_overrides.values() else presumed(roles, self._values, self.config)

    @cached_property
    def _named_roles(self) -> dict[str, str | None]:
        """tag -> the role that its name shows, or the user's settings."""
        tags = {tag: None for stream in self.streams for tag in stream.points.tags}
        return roles_of(tags, self._values) | {t: r for t, r in self.role_overrides.items() if t in tags}

    def _values(self, tag: str) -> NDArray[np.float64]:
        """The numbers of a tag in the stream that has most of them, in the order in which they were logged."""
        found = [
            s.points.value[s.points.code == s.points.tags.index(tag)] for s in self.streams if tag in s.points.tags
        ]
        return max(found, key=len, default=np.empty(0))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The numbers in long format: run, source, rank, segment, tag, step, wall_time, value; one row per value."""
        tags = list(self.roles)
        where = {t: i for i, t in enumerate(tags)}
        kinds = list(dict.fromkeys(s.source for s in self.streams))

        def joined(parts: Sequence[Any], dtype: Any) -> Any:
            return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)

        code = joined(
            [
                np.array([where[t] for t in s.points.tags], np.int32)[s.points.code]
                if len(s.points)
                else np.empty(0, np.int32)
                for s in self.streams
            ],
            np.int32,
        )
        source = joined([np.full(len(s.points), kinds.index(s.source), np.int32) for s in self.streams], np.int32)
        return _frame_of(
            {
                "run": _categorical(np.zeros(len(code), np.int32), [self.name]),
                "source": _categorical(source, kinds),
                "rank": joined([s.points.rank for s in self.streams], np.int16),
                "segment": joined([s.segment for s in self.streams], np.int16),
                "tag": _categorical(code, tags),
                "step": joined([s.points.printed_step for s in self.streams], np.int64),
                "wall_time": joined([s.points.wall_time for s in self.streams], np.float64),
                "value": joined([s.points.value for s in self.streams], np.float64),
            }
        )

    @cached_property
    def events(self) -> pd.DataFrame:
        """The log events: run, source, rank, step, wall_time, file, line, kind, severity, message, fields."""
        import pandas as pd

        rows = [
            (self.name, e.source, e.rank, e.step, e.wall_time, e.file, e.line, e.kind, e.severity, e.message, e.fields)
            for e in self.event_list
        ]
        frame = pd.DataFrame(rows, columns=list(EVENT_COLUMNS))
        return frame.astype({"rank": "Int16", "step": "Int64", "line": "Int64", "wall_time": "float64"})

    def pivot(self, *tags: str) -> pd.DataFrame:
        """The numbers in wide format: one column per tag (default: all tags), one row per step, ordered by step.

        Of steps that a restart logged again, only the surviving values are included; if a tag has several values at one
        step, the last. A tag of several ranks has one column per rank, named "loss (rank 1)". NaN is either a logged
        NaN or no value at that step (`frame` distinguishes them). Raises KeyError if the run has no such tag.
        """
        import pandas as pd

        columns = {one.label: self._indexed(one) for tag in tags or self._tags() for one in self._named(tag)}
        table = pd.concat(columns, axis=1).sort_index() if columns else pd.DataFrame()
        return table.rename_axis("step")

    def series(self, tag: str, rank: int | None = None) -> pd.Series[float]:
        """The values of one tag, indexed by step, as in `pivot`; of `rank`, or of the first rank that logged it.

        Raises KeyError if the run, or that rank, has no such tag.
        """
        found = [one for one in self._named(tag) if rank in (None, one.rank)]
        if not found:
            raise KeyError(f"{tag!r} has no values of rank {rank}")
        return self._indexed(found[0])

    @cached_property
    def _surviving(self) -> list[Series]:
        found: list[Series] = HOOKS["series"](self)
        return found

    def _tags(self) -> list[str]:
        return list(dict.fromkeys(one.tag for one in self._surviving))

    def _named(self, tag: str) -> list[Series]:
        found = [one for one in self._surviving if one.tag == tag]
        if not found:
            raise KeyError(f"unknown tag {tag!r}; available: {', '.join(sorted(self._tags())) or 'none'}")
        return found

    @staticmethod
    def _indexed(one: Series) -> pd.Series[float]:
        import pandas as pd

        values = pd.Series(one.value, index=pd.Index(one.printed_step, name="step"), name=one.label)
        return values[~values.index.duplicated(keep="last")]

    def refresh(self) -> Run:
        """Reads the run again as its files are now, and returns a new Run; this one is not changed.

        Only what is new is read: files that were added or changed, and what was appended to event files. A file that
        was truncated or replaced is read from its beginning. Raises UsageError if the run was not created by `load`;
        otherwise the errors of `load`, such as NotFoundError if the path no longer exists.
        """
        if self.reload is None:
            raise UsageError(f"{self.name} was not made by load(), and only such a run can be refreshed")
        return self.reload()

    def plot(self, ax: Any = None, *, tags: Sequence[str] | None = None, around: int | None = None) -> Any:
        """Plots loss, gradient norm and learning rate over the step, or the `tags`; returns the matplotlib Axes.

        `around` is a step: only the points near it are plotted. Without `ax`, the figure is a new one, which
        ``.figure.savefig(…)`` of the Axes saves, or ``plt.savefig(…)`` if matplotlib.pyplot was imported before.
        """
        return plot(self, ax, tags=tags, around=around)


def _frame_of(columns: dict[str, Any]) -> pd.DataFrame:
    """A frame of columns that nothing else holds: they are not copied, nor are the names converted again."""
    import pandas as pd

    frame = pd.DataFrame(dict(enumerate(columns.values())), copy=False)
    frame.columns = _names(tuple(columns)).copy()
    return frame


@lru_cache(maxsize=4)
def _names(columns: tuple[str, ...]) -> pd.Index[str]:
    import pandas as pd

    return pd.Index(columns)


def _categorical(code: NDArray[np.int32], names: Sequence[str]) -> pd.Categorical:
    """A categorical column; `code` are indices of `names`."""
    import pandas as pd

    return pd.Categorical.from_codes(code, dtype=_dtype(tuple(names)), validate=False)


@lru_cache(maxsize=256)
def _dtype(names: tuple[str, ...]) -> pd.CategoricalDtype:
    """Kept, as many runs have the same tags: pandas takes as long for it as for the rest of a small frame."""
    import pandas as pd

    return pd.CategoricalDtype(pd.Index(names, dtype="str"))
