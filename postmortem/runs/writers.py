"""Which files of one folder several runs wrote at the same time: each writer is a run of its own.

Processes of one job write into one folder as well: its ranks run in step with each other, one of them may only
evaluate, and one process may write the same numbers to two files. A restart begins after the end of what it continues.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import occurrences
from postmortem.core.merge import close_values
from postmortem.core.roles import role_of
from postmortem.core.stats import median
from postmortem.readers import content_of
from postmortem.runs.file_names import creation_time, event_writer, run_key, slurm_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from postmortem.core.points import Points
    from postmortem.core.reading import Reading
    from postmortem.runs.claimed import Part

    Item = tuple[Part, Reading]

INTERLEAVED = 10
"""Points of each of two files that lie within the time of the other: their processes ran at once."""
_COMPARED = 8
"""Tags of two files that are compared, those with a role first: a log may hold a hundred thousand."""
_AGREE = 0.9
"""Fraction of common steps at which two files must agree to be of one process, or run in step to be ranks of a job."""
_OWN = ("loss", "val_loss", "grad_norm")
"""Roles whose values are a run's own; schedules are alike in many."""
_FEW = 3
"""Common steps that tell whose numbers a file repeats."""
_AT_ONCE = 32
"""Files written at the same time that another one is compared with: each of a thousand ranks may write one."""
_CLOCK = 1.0
"""Seconds: the resolution of the times that programs print."""


@dataclass(slots=True, eq=False)
class Writer:
    """The files that one writer of a folder wrote. `known` is false where nothing shows whose they are."""

    items: list[Item] = field(default_factory=list)
    known: bool = True

    @property
    def file(self) -> Part:
        """The file that stands for the writer: the first that was found to be written at the same time as another."""
        return self.items[0][0]

    def last(self) -> tuple[float, int]:
        """The end of the writer's files in time, and the step logged last."""
        ends = [(span(part, reading)[1], reading) for part, reading in self.items if len(reading.points)]
        if not ends:
            return -np.inf, 0
        end, reading = max(ends, key=lambda found: found[0])
        return end, int(reading.points.take("step", -1))


def by_writer(items: Sequence[Item]) -> list[Writer]:
    """The files of a folder by the run that wrote them; one `Writer` where they are one run, as they mostly are.

    Files that were written at the same time come first; each of the others goes to the one writer that it fits by the
    process or job in its name, its numbers, the step it continues, or its time. What fits none or several is apart.
    """
    rivals = _rivals(items) if len(items) > 1 else {}
    if not rivals:
        return [Writer(list(items))]
    known: list[Writer] = []
    of_writer: list[set[int]] = []
    for k in sorted(rivals):
        free = [w for w, mine in zip(known, of_writer, strict=True) if not mine & rivals[k]]
        chosen = _fitting(items[k], free) or next(iter(free), None)
        if chosen is None:
            known.append(Writer())
            of_writer.append(set())
            chosen = known[-1]
        chosen.items.append(items[k])
        of_writer[known.index(chosen)].add(k)
    unknown: list[Writer] = []
    for item in (item for k, item in enumerate(items) if k not in rivals):
        chosen = _fitting(item, known) or next((w for w in unknown if _same_process(item, w)), None)
        if chosen is None:
            unknown.append(Writer(known=False))
            chosen = unknown[-1]
        chosen.items.append(item)
    return [*known, *unknown]


def _rivals(items: Sequence[Item]) -> dict[int, set[int]]:
    """The files that another run wrote at the same time, or under another id: index -> indices of those others."""
    found: dict[int, set[int]] = {}

    def note(i: int, k: int) -> None:
        found.setdefault(i, set()).add(k)
        found.setdefault(k, set()).add(i)

    ids = {k: known for k, item in enumerate(items) if (known := _id(item)) is not None}
    for i, k in combinations(ids, 2):
        if ids[i] != ids[k]:
            note(i, k)
    spans = [span(part, reading) for part, reading in items]
    active: list[int] = []
    for k in sorted(range(len(items)), key=lambda i: spans[i]):
        active = [i for i in active if spans[i][1] > spans[k][0]]
        for i in active[-_AT_ONCE:]:
            if two_runs(items[i], items[k]):
                note(i, k)
        active.append(k)
    return found


def span(part: Part, reading: Reading) -> tuple[float, float]:
    """The first and the last time of a file's numbers, an empty interval if none is known.

    An event file was not begun before the time in its name: clocks may be set back, or times copied from another run.
    """
    if not len(reading.points):
        return np.inf, -np.inf
    wall = reading.points.take("wall_time", slice(None))
    begin, end = float(np.fmin.reduce(wall, initial=np.inf)), float(np.fmax.reduce(wall, initial=-np.inf))
    return max(begin, creation_time(part.path)), end


def at_once(a: Points, b: Points) -> bool:
    """Whether two files hold the same steps of the same metrics, written at the same time; a restart comes after."""
    if not set(a.tags).intersection(b.tags):
        return False
    for inner, outer in ((a, b), (b, a)):
        wall, other = inner.take("wall_time", slice(None)), outer.take("wall_time", slice(None))
        begin, end = np.fmin.reduce(other, initial=np.inf), np.fmax.reduce(other, initial=-np.inf)
        if np.count_nonzero((wall >= begin) & (wall <= end)) < INTERLEAVED:
            return False
    common = np.intersect1d(a.take("step", slice(None)), b.take("step", slice(None)))
    return len(common) >= INTERLEAVED


def same_numbers(a: Points, b: Points) -> bool:
    """Whether one process wrote its numbers to both files: they are equal, at the same times."""
    common = list(_common(a, b))
    return bool(common) and all(c.equal and c.in_step(_CLOCK) for c in common)


def two_runs(a: Item, b: Item) -> bool:
    """Whether two files were written at the same time by two runs, not by processes of one job."""
    (one, first), (other, second) = a, b
    if content_of(one.reader) != content_of(other.reader) or content_of(one.reader) not in ("events", "output"):
        return False
    if one.rank != other.rank or _same_job(one, other) or not at_once(first.points, second.points):
        return False
    common = list(_common(first.points, second.points))
    if not common or all(c.equal and c.in_step(_CLOCK) for c in common) or any(c.sparser for c in common):
        return False
    is_output = content_of(one.reader) == "output"
    if not all(c.in_step(_CLOCK if is_output else 0.0) for c in common):
        return True
    process = event_writer(one.path)
    return (process is not None and process == event_writer(other.path)) or any(c.unlike_ranks for c in common)


def _id(item: Item) -> str | None:
    """The id that a tracker, as W&B is, gave the run."""
    part, reading = item
    return reading.facts.get("run_id") if content_of(part.reader) == "history" else None


def _same_job(a: Part, b: Part) -> bool:
    """Whether the names of two outputs tell that one job printed both."""
    if content_of(a.reader) != "output":
        return False
    job = slurm_job(a.path)
    return run_key(a.path) == run_key(b.path) or (job is not None and job == slurm_job(b.path))


@dataclass(frozen=True, slots=True)
class _Common:
    """One metric at the steps that two files share: values and times (n,) of both, and their usual steps apart."""

    role: str | None
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    at_x: NDArray[np.float64]
    at_y: NDArray[np.float64]
    strides: tuple[float, float]

    @property
    def equal(self) -> bool:
        return bool(close_values(self.x, self.y).mean() >= _AGREE)

    @property
    def sparser(self) -> bool:
        """Whether one logs at every second step of the other or less: an evaluation of what the other trains."""
        return max(self.strides) >= 2 * min(self.strides)

    @property
    def unlike_ranks(self) -> bool:
        """Ranks of a job have one learning rate, and a non-finite gradient reaches them all."""
        broken = np.isfinite(self.x) != np.isfinite(self.y)
        return (self.role == "lr" and not self.equal) or (self.role == "loss" and bool(broken.sum() >= INTERLEAVED))

    def in_step(self, resolution: float) -> bool:
        """Whether both come to each step at the same time, to half of the time from step to step."""
        usual = median(np.abs(np.diff(self.at_x)))
        apart = np.abs(self.at_x - self.at_y)
        return bool((apart <= max(usual / 2, resolution)).mean() >= _AGREE)


def _common(a: Points, b: Points) -> Iterator[_Common]:
    """The metrics that both files hold at enough common steps, the first of those with a role."""
    tags = sorted(set(a.tags).intersection(b.tags), key=lambda tag: (role_of(tag) is None, a.tags.index(tag)))
    for tag in tags[:_COMPARED]:
        (step, value, wall), (other_step, other_value, other_wall) = _metric(a, tag), _metric(b, tag)
        _, i, j = np.intersect1d(step, other_step, assume_unique=True, return_indices=True)
        timed = np.isfinite(wall[i]) & np.isfinite(other_wall[j])
        i, j = i[timed], j[timed]
        if len(i) >= INTERLEAVED:
            strides = median(np.diff(step)), median(np.diff(other_step))
            yield _Common(role_of(tag), value[i], other_value[j], wall[i], other_wall[j], strides)


def _metric(points: Points, tag: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Step (ascending, each once), value and time of a tag; of several ranks, of the lowest."""
    rows = np.flatnonzero(points.code == points.tags.index(tag))
    rank = points.take("rank", rows)
    rows = rows[rank == rank.min()]
    step, first, _ = occurrences(points.take("step", rows))
    return step, points.value[rows[first]], points.take("wall_time", rows[first])


def _fitting(item: Item, writers: Sequence[Writer]) -> Writer | None:
    """The one writer that a file fits, by the first of these reasons that fits any."""
    reasons: tuple[Callable[[Item, Writer], bool], ...] = (_same_process, _repeats, _within_time)
    for fits in reasons:
        found = [writer for writer in writers if fits(item, writer)]
        if len(found) == 1:
            return found[0]
    return _continued(item, writers)


def _same_process(item: Item, writer: Writer) -> bool:
    process = event_writer(item[0].path)
    return any(
        (process is not None and process == event_writer(part.path)) or _same_job(item[0], part)
        for part, _ in writer.items
    )


def _repeats(item: Item, writer: Writer) -> bool:
    """Whether the file holds a loss or norm of gradients as one of the writer's does, with the same values."""
    points = item[1].points
    for tag in [tag for tag in points.tags if role_of(tag) in _OWN][:_COMPARED]:
        step, value, _ = _metric(points, tag)
        for _, reading in writer.items:
            for other in [t for t in reading.points.tags if role_of(t) == role_of(tag)][:_COMPARED]:
                other_step, other_value, _ = _metric(reading.points, other)
                common, i, j = np.intersect1d(step, other_step, assume_unique=True, return_indices=True)
                if len(common) >= _FEW and close_values(value[i], other_value[j]).mean() >= _AGREE:
                    return True
    return False


def _within_time(item: Item, writer: Writer) -> bool:
    """Whether the times of the file, or of the events in it, lie in those of the writer."""
    begin, end = span(*item)
    times = [begin, end] if begin <= end else [e.wall_time for e in item[1].events if not np.isnan(e.wall_time)]
    spans = [span(part, reading) for part, reading in writer.items]
    return bool(times) and any(first <= max(times) and min(times) <= last for first, last in spans)


def _continued(item: Item, writers: Sequence[Writer]) -> Writer | None:
    """The writer at whose last step a file that was begun after all of them goes on: nearer than at any other's."""
    begin, end = span(*item)
    if begin > end or not writers or any(writer.last()[0] > begin for writer in writers):
        return None
    first = int(item[1].points.take("step", 0))
    gaps = sorted((abs(first - writer.last()[1]), k) for k, writer in enumerate(writers))
    return writers[gaps[0][1]] if len(gaps) == 1 or gaps[0][0] < gaps[1][0] else None


def labels(writers: Sequence[Writer]) -> list[str]:
    """What tells the writers apart in a name: host and process, what follows the time in an event file's name, the
    name that a log gives its run, or the name of the file; programs that wrote into one file are numbered."""
    parts = [writer.file for writer in writers]
    named = [[event_writer(p.path), p.path.name.rpartition("tfevents.")[2].partition(".")[2]] for p in parts]
    choices = (
        [names[0] or run_key(part.path) for names, part in zip(named, parts, strict=True)],
        [names[1] or run_key(part.path) for names, part in zip(named, parts, strict=True)],
        [part.path.name for part in parts],
    )
    files = len({part.path for part in parts})
    names = next((found for found in choices if all(found) and len(set(found)) == files), [str(p.path) for p in parts])
    return [
        f"{name} (program {names[: i + 1].count(name)})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]
