"""From the files of a run to a `Run`: reads each file, joins the streams, decides how the run ended."""

from __future__ import annotations

import filecmp
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.errors import described
from postmortem.core.model import Ended, Event, Problem, Source
from postmortem.core.points import Points
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.core.run import Run, Stream, segments
from postmortem.readers import content_of
from postmortem.runs.config import config_of_run
from postmortem.runs.file_names import order_of_writing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from postmortem.runs.group import Part, RunFiles

_MOST_SPECIFIC: tuple[Ended, ...] = (
    *("out-of-memory", "time-limit", "preempted", "hung", "killed", "crashed"),
    *("interrupted", "completed", "running", "cut"),
)
"""Where sources disagree on the end, the first of these counts: "out of memory" beats "exit code 1"."""
_STILL_RUNNING_SECONDS = (150.0, 300.0)
"""Silence of a training that still runs: TensorBoard's writers buffer up to 120 s; who logs rarely gets the second."""
_STILL_RUNNING_ROWS = 20
_NEWEST = 100_000
"""Number of points whose times show how often a stream logs, and when it did last."""
_INTERLEAVED = 10
"""Points of each of two files that lie within the time of the other: their processes ran at once."""
_NO_STEPS = ("epoch", "row")
_COARSER = "numbers without a step that another source has with a step"


def read_run(
    files: RunFiles,
    *,
    roles: Mapping[str, str] | None = None,
    roots: Sequence[Path] = (),
    shared: Collection[Path] = (),
) -> Run:
    """Reads all files of a run. Never raises for content: what is wrong becomes a Problem.

    `roles` maps tags to roles. The run's settings file may also lie in a folder above its logs: up to one of `roots`,
    the paths that were asked for, and not in a folder that several runs share (`shared`).
    """
    parts, copies = _without_copies(files.parts)
    readings = [(part, _read(part)) for part in parts]
    outputs = [reading for part, reading in readings if content_of(part.reader) == "output"]
    others = [reading for part, reading in readings if content_of(part.reader) != "output"]
    _place_events_of_outputs_without_numbers(outputs, others)
    _drop_prints_without_steps(outputs, others)
    _move_failures_to_last_step([*outputs, *others], outputs)
    events: list[Event] = []
    problems: list[Problem] = []
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    skipped: dict[str, int] = defaultdict(int)
    notes = copies
    for part, reading in readings:
        events += reading.events
        problems += reading.problems
        config.update(reading.config)
        summary.update(reading.summary)
        notes += [f"{part.path.name}: {note}" for note in reading.notes]
        for what, count in reading.skipped.items():
            skipped[what] += count
        if console := reading.facts.pop("console", None):
            events += _console_events(reading, console)
    streams = _streams(readings, notes)
    return Run(
        name=files.name,
        path=files.path,
        streams=streams,
        ended=_ended(readings, streams),
        step_axis=_step_axis([reading for _, reading in readings]),
        event_list=_without_repeats(events),
        problems=problems,
        sources=_sources(readings),
        config=config_of_run(config, files, roots, shared, problems, notes),
        summary=summary,
        notes=notes,
        skipped=dict(skipped),
        role_overrides=dict(roles or {}),
        readings=[replace(reading, points=Points.empty()) for _, reading in readings],
    )


def _without_copies(parts: list[Part]) -> tuple[list[Part], list[str]]:
    """The files that are no byte-identical copy (a backup, a second download) of another, and a note on each copy.

    Outputs are all kept: ranks may print the same.
    """
    kept: list[Part] = []
    notes = []
    by_size: dict[object, list[Part]] = defaultdict(list)
    for part in parts:
        similar = by_size[part.reader, part.path.parent, part.prefix, part.rank, _size(part.path)]
        compared = [] if content_of(part.reader) == "output" else similar
        original = next((other for other in compared if _same_bytes(other.path, part.path)), None)
        if original is None:
            similar.append(part)
            kept.append(part)
        else:
            notes.append(f"{part.path.name}: a copy of {original.path.name}, read once")
    return kept, notes


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1  # its reading reports why


def _same_bytes(a: Path, b: Path) -> bool:
    try:
        return filecmp.cmp(a, b, shallow=False)
    except OSError:
        return False


def _read(part: Part) -> Reading:
    try:
        reading = part.reader.read(part.path)
        if not isinstance(reading, Reading):
            raise TypeError(f"{reading!r} is not a Reading")
    except OSError as error:
        return _unread(part, f"cannot be read: {error.strerror or error}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a fault of a reader costs its file, not the scan
        return _unread(part, f"the {part.reader.kind} reader failed: {described(error)}")
    points = reading.points
    if part.prefix:
        points.tags = [f"{part.prefix}/{tag}" for tag in points.tags]
        reading.blanks = {f"{part.prefix}/{tag}": count for tag, count in reading.blanks.items()}
    if part.rank >= 0:
        points.rank = np.where(points.rank < 0, part.rank, points.rank).astype(np.int16)
        reading.events = [replace(e, rank=part.rank) if e.rank is None else e for e in reading.events]
    return reading


def _unread(part: Part, what: str) -> Reading:
    problem = Problem(path=str(part.path), what=what, lost="the file")
    return Reading(source=part.reader.kind, path=str(part.path), problems=[problem])


def _place_events_of_outputs_without_numbers(outputs: list[Reading], others: list[Reading]) -> None:
    """Gives the events of an output without any numbers (an ``.err``) the steps of the numbers in the same folder.

    That is the last step before their time, where both are outputs and so share a clock; else an error gets the last
    step of the run, and other events get none.
    """
    without = [r for r in outputs if not len(r.points) and any(e.step is None for e in r.events)]
    prints = [r.points for r in outputs if _has_steps(r)]
    known = prints or [r.points for r in others if _has_steps(r)]
    if not known or not without:
        return
    wall = np.concatenate([np.empty(0), *(points.wall_time for points in prints)])
    step = np.concatenate([np.empty(0, np.int64), *(points.step for points in prints)])
    order = np.flatnonzero(~np.isnan(wall))
    order = order[np.argsort(wall[order], kind="stable")]
    last = int((prints[-1] if prints else known[0]).step[-1])
    wall, step = wall[order], step[order]
    for reading in without:
        reading.events = [
            replace(e, step=_step_of(e, wall, step, last)) if e.step is None else e for e in reading.events
        ]


def _has_steps(reading: Reading) -> bool:
    return len(reading.points) > 0 and reading.step_axis != "row"


def _step_axis(readings: list[Reading]) -> str:
    """What the steps of the run count; rows and epochs only where no source has steps."""
    axes = {reading.step_axis for reading in readings if len(reading.points)}
    return axes.pop() if len(axes) == 1 and axes <= set(_NO_STEPS) else "step"


def _step_of(event: Event, wall: NDArray[np.float64], step: NDArray[np.int64], last: int) -> int | None:
    """The step at the time of an event: `wall` (n,) ascends, `step` (n,) goes with it; `last` is the run's last."""
    if np.isnan(event.wall_time) or not len(wall):
        return last if event.severity == "error" else None
    before = int(np.searchsorted(wall, event.wall_time, side="right"))
    return int(step[before - 1]) if before else None


def _drop_prints_without_steps(outputs: list[Reading], others: list[Reading]) -> None:
    """Drops the numbers that an output has without a step where another source of the run has them with one.

    Such are the last values of a progress bar, or the mean of each epoch: with epochs or lines in place of steps,
    they would be at steps where they did not occur.
    """
    with_steps = {_quantity(tag) for r in others if r.step_axis not in _NO_STEPS for tag in r.points.tags}
    for reading in outputs:
        points = reading.points
        if with_steps and reading.step_axis in _NO_STEPS and len(points):
            reading.events = [replace(event, step=None) for event in reading.events]
            stays = np.array([_quantity(tag) not in with_steps for tag in points.tags])[points.code]
            if not stays.all():
                reading.points = _selected(points, stays)
                reading.skipped[_COARSER] = reading.skipped.get(_COARSER, 0) + int((~stays).sum())


def _move_failures_to_last_step(readings: list[Reading], outputs: list[Reading]) -> None:
    """Moves a failure after the last step that an output printed to the last step of a source that logs more often.

    Only within the interval at which the output prints: beyond it the other source may be of another attempt. An output
    without numbers (an ``.err``) has its steps from the one that has them.
    """
    prints = [r for r in outputs if (r.step_axis not in _NO_STEPS and len(r.points))]
    reached = max(
        (int(r.points.step.max()) for r in readings if r.step_axis not in _NO_STEPS and len(r.points)), default=0
    )
    for reading in outputs:
        printed = reading if reading in prints else next(iter(prints[-1:]), None)
        if printed is None or (len(reading.points) and printed is not reading):
            continue
        steps = np.unique(printed.points.step)
        last = int(steps[-1])
        if last < reached and len(steps) > 1 and reached <= last + float(np.median(np.diff(steps))):
            reading.events = [
                replace(e, step=reached) if e.step == last and e.severity == "error" else e for e in reading.events
            ]


def _quantity(tag: str) -> str:
    return role_of(tag) or tag.rsplit("/", 1)[-1]


def _selected(points: Points, rows: NDArray[np.bool_]) -> Points:
    there, code = np.unique(points.code[rows], return_inverse=True)
    tags = [points.tags[k] for k in there]
    step, wall_time, rank = (points.take(name, rows) for name in ("step", "wall_time", "rank"))
    return Points(tags, code.astype(np.int32), step, points.value[rows], wall_time, rank)


def _console_events(reading: Reading, console: list[tuple[str, str]]) -> list[Event]:
    """The failures in the console output that a W&B run carries; sets how the reading ended, if it shows more."""
    from postmortem.readers.text.failures import find_events

    text = "".join(chunk for _, chunk in console)
    found = find_events(enumerate(text.split("\n"), 1), path=reading.path, source=reading.source)
    last = int(reading.points.step.max()) if len(reading.points) else None
    if found.ended is not None and reading.ended in (None, "crashed"):
        reading.ended = found.ended
    return [replace(e, line=None, step=last if e.step is None else e.step) for e in found.events]


def _without_repeats(events: list[Event]) -> list[Event]:
    """Drops an event without a line that another source has with one (a W&B console and its output.log)."""
    placed = {(e.kind, e.message) for e in events if e.line is not None}
    return [e for e in events if e.line is not None or (e.kind, e.message) not in placed]


def _begin_and_end(points: Points) -> tuple[float, float]:
    """The first and the last wall time; an empty interval if none is known."""
    wall = points.take("wall_time", slice(None))
    return float(np.fmin.reduce(wall, initial=np.inf)), float(np.fmax.reduce(wall, initial=-np.inf))


def _at_once(a: Points, b: Points) -> bool:
    """Whether two processes wrote the same steps of the same metrics at the same time: a restart would come after.

    Tags of a second writer have its number behind them; they are compared without.
    """
    for inner, outer in ((a, b), (b, a)):
        begin, end = _begin_and_end(outer)
        wall = inner.take("wall_time", slice(None))
        if np.count_nonzero((wall >= begin) & (wall <= end)) < _INTERLEAVED:
            return False
    tags = {tag.partition(" (writer ")[0] for tag in a.tags}.intersection(b.tags)
    if not tags:
        return False
    common = np.intersect1d(a.take("step", slice(None)), b.take("step", slice(None)))
    return len(common) >= _INTERLEAVED


def _streams(readings: list[tuple[Part, Reading]], notes: list[str]) -> list[Stream]:
    grouped: dict[tuple[str, str], list[Points]] = defaultdict(list)
    times: dict[int, tuple[float, float]] = {}
    for part, reading in readings:
        if not len(reading.points):
            continue
        begin, end = _begin_and_end(reading.points)
        begin = max(begin, float(order_of_writing(part.path)))  # clocks may be set back, or copied from another run
        times[id(reading.points)] = begin, end
        name, writer = part.stream, 1
        while any(
            begin < times[id(other)][1] and times[id(other)][0] < end and _at_once(other, reading.points)
            for other in grouped[reading.source, name]
        ):
            writer += 1
            name = f"{part.stream} (writer {writer})"
        if writer > 1:
            reading.points.tags = [f"{tag} (writer {writer})" for tag in reading.points.tags]
            notes.append(f"{part.path.name}: another process wrote the same metrics at the same time: kept apart")
        grouped[reading.source, name].append(reading.points)
    streams = []
    for (source, name), parts in grouped.items():
        points = parts[0] if len(parts) == 1 else _concatenated(parts)
        segment, restarts = segments(points)
        streams.append(Stream(source, name, points, segment, restarts))
    return streams


def _concatenated(parts: list[Points]) -> Points:
    tags = list(dict.fromkeys(tag for p in parts for tag in p.tags))
    where = {t: i for i, t in enumerate(tags)}
    codes = [np.array([where[t] for t in p.tags], np.int32)[p.code] for p in parts]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(p, name) for p in parts])

    return Points(tags, np.concatenate(codes), joined("step"), joined("value"), joined("wall_time"), joined("rank"))


def _sources(readings: list[tuple[Part, Reading]]) -> list[Source]:
    files: dict[str, list[str]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for part, reading in readings:
        files[reading.source].append(str(part.path))
        count[reading.source] += len(reading.points)
    return [Source(kind=kind, files=tuple(names), points=count[kind]) for kind, names in files.items()]


def _ended(readings: list[tuple[Part, Reading]], streams: list[Stream]) -> Ended:
    """How the run ended, by the last file of each stream; "running" where the log is minutes old and names no end."""
    last = {part.stream: reading.ended for part, reading in readings}
    for ended in _MOST_SPECIFIC:
        if ended in last.values():
            return ended
    return "running" if _is_recent(streams) else "unknown"


def _is_recent(streams: list[Stream]) -> bool:
    """Whether the newest stream is silent for no longer than is usual between its rows."""
    times = (stream.points.take("wall_time", slice(-_NEWEST, None)) for stream in streams)
    known = [np.unique(wall[np.isfinite(wall)]) for wall in times]
    newest = max((wall for wall in known if len(wall)), key=lambda wall: float(wall[-1]), default=None)
    if newest is None:
        return False
    usual = float(np.median(np.diff(newest[-1000:]))) if len(newest) > 1 else np.inf
    return bool(0 <= time.time() - newest[-1] < np.clip(_STILL_RUNNING_ROWS * usual, *_STILL_RUNNING_SECONDS))
