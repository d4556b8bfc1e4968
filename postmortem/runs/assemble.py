"""From the files of a run to a `Run`: reads each file, joins the streams, decides how the run ended."""

from __future__ import annotations

import filecmp
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.checkpoints.captures import captures_of
from postmortem.checkpoints.histories import history_of
from postmortem.core.distinct import distinct
from postmortem.core.errors import described
from postmortem.core.model import Ended, Event, Problem, Source
from postmortem.core.points import Points
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.core.run import Run, without_tag
from postmortem.core.skipped import Skip, Skips
from postmortem.core.stats import median
from postmortem.readers import content_of
from postmortem.runs.cache import read_file
from postmortem.runs.claimed import RunFiles
from postmortem.runs.config import config_of_run
from postmortem.runs.interleaved import told_apart
from postmortem.runs.kept import current
from postmortem.runs.launched import has_recipe, launched, only_script
from postmortem.runs.names_in import NamesIn
from postmortem.runs.streams import streams_of
from postmortem.runs.watched import record, watched
from postmortem.runs.writers import Writer, by_writer, labels

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from postmortem.core.culprit import Watched
    from postmortem.core.run import Stream
    from postmortem.runs.claimed import Part

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
_NO_STEPS = ("epoch", "row")


def read_runs(
    files: RunFiles,
    *,
    roles: Mapping[str, str] | None = None,
    roots: Sequence[Path] = (),
    shared: Collection[Path] = (),
) -> list[Run]:
    """Reads the files of a folder: one run, or one for each of the writers that wrote into it at the same time.

    Never raises for content: what is wrong becomes a Problem. `roles` maps tags to roles. The run's settings file may
    also lie in a folder above its logs: up to one of `roots`, the paths that were asked for, and not in a folder that
    several runs share (`shared`).
    """
    parts, copies = _without_copies(files.parts)
    writers = [own for writer in by_writer([(part, _read(part)) for part in parts]) for own in _each_program(writer)]
    if len(writers) == 1:
        return [_assembled(files, writers[0].items, copies, roles, roots, shared)]
    runs = []
    for writer, label in zip(writers, labels(writers), strict=True):
        own = RunFiles(f"{files.name}/{label}", writer.file.path, [part for part, _ in writer.items])
        notes = [*copies, *_same_folder(files, writer, writers)]
        runs.append(_assembled(own, writer.items, notes, roles, roots, shared))
    return runs


def _each_program(writer: Writer) -> list[Writer]:
    """The programs whose rows alternate in the one log of a writer; mostly just the writer itself."""
    logs = [(part, reading) for part, reading in writer.items if len(reading.points)]
    if len(logs) != 1 or content_of(logs[0][0].reader) != "output":
        return [writer]
    part, whole = logs[0]
    first, *others = told_apart(whole)
    if not others:
        return [writer]
    rest = [item for item in writer.items if item[1] is not whole]
    return [Writer([(part, first), *rest]), *(Writer([(part, reading)]) for reading in others)]


def _same_folder(files: RunFiles, writer: Writer, writers: Sequence[Writer]) -> list[str]:
    """The note that a run lies in one folder with others that were written at the same time, into other files."""
    at_once = [w for w in writers if w.known]
    others = ", ".join(sorted({w.file.path.name for w in at_once} - {writer.file.path.name}))
    if not writer.known:
        return [f"{len(at_once)} runs wrote into {files.path} ({others}): nothing shows whose this file is"]
    if not others:
        return []
    return [
        f"{len(at_once)} runs wrote into {files.path} at the same time: this one and {others}; checkpoints in the "
        "folder are counted to none of them"
    ]


def _assembled(
    files: RunFiles,
    readings: Sequence[tuple[Part, Reading]],
    notes: list[str],
    roles: Mapping[str, str] | None,
    roots: Sequence[Path],
    shared: Collection[Path],
) -> Run:
    """The run of these readings."""
    if any(len(reading.points) for _, reading in readings if reading.machine is None):
        for _, reading in readings:
            reading.points = reading.points if reading.machine is None else Points.empty()  # the machine's, by row
    outputs = [reading for part, reading in readings if content_of(part.reader) == "output"]
    others = [reading for part, reading in readings if content_of(part.reader) != "output"]
    _place_events_of_outputs_without_numbers(outputs, others)
    _drop_prints_without_steps(outputs, others)
    _place_epochs(outputs)
    _move_failures_to_last_step([*outputs, *others], outputs)
    events: list[Event] = []
    problems: list[Problem] = []
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    skipped = Skips()
    there, notes = NamesIn(shared), [*notes]
    for part, reading in readings:
        events += reading.events
        problems += reading.problems
        config.update(reading.config)
        summary.update(reading.summary)
        notes += [f"{part.path.name}: {note}" for note in reading.notes]
        skipped.add(reading.skipped)
        if console := reading.facts.pop("console", None):
            events += _console_events(reading, console)
    streams = streams_of(readings, notes)
    notes += without_tag(roles or {}, {tag for stream in streams for tag in stream.points.tags})
    settings = config_of_run(config, files, roots, shared, problems, notes, there)
    started = launched(files, settings, shared, there)
    noted = watched([part for part, _ in readings], streams)
    events += record(noted, readings)
    return Run(
        name=_shown_name(readings) or files.name,
        path=files.path,
        streams=streams,
        ended=_ended(readings, streams, noted),
        step_axis=_step_axis([reading for _, reading in readings]),
        event_list=_without_repeats(events),
        problems=problems,
        sources=_sources(readings),
        config=settings,
        summary=summary,
        notes=notes,
        skipped=skipped,
        role_overrides=dict(roles or {}),
        readings=[replace(reading, points=Points.empty()) for _, reading in readings],
        launched=started,
        script=only_script(files, settings, shared, there) if started is None else None,
        recipe=has_recipe(files, there),
        captures=captures_of(files.path, *(p.path.parent for p, _ in readings if history_of(p.path))),
        watched=noted,
    )


def _shown_name(readings: Sequence[tuple[Part, Reading]]) -> str | None:
    """The name that the run has in the tool it was logged with (W&B, MLflow), None if no file contains one."""
    names = (str(reading.facts.get("display_name", "")).strip() for _, reading in readings)
    return next((name for name in names if name), None)


def _without_copies(parts: list[Part]) -> tuple[list[Part], list[str]]:
    """The files that are no byte-identical copy (a backup, a second download) of another, and a note on each copy.

    Outputs are all kept: ranks may print the same.
    """
    if len(parts) == 1:
        return parts, []
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
        kept = current()
        reading = read_file(part.reader, part.path) if kept is None else kept.read(part.reader, part.path)
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
        reading.unreadable = {f"{part.prefix}/{tag}": count for tag, count in reading.unreadable.items()}
    if part.rank >= 0:
        points.rank = np.where(points.rank < 0, part.rank, points.rank).astype(np.int16)
        reading.events = [replace(e, rank=part.rank) if e.rank is None else e for e in reading.events]
    return reading


def _unread(part: Part, what: str) -> Reading:
    problem = Problem(path=str(part.path), what=what, lost="the file", extent="file")
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
                reading.points = points.with_tags_of(stays)
                reading.skipped[Skip.COARSER] += int((~stays).sum())


def _place_epochs(outputs: list[Reading]) -> None:
    """Orders what an output prints once an epoch among the steps of another, where that tells the end of each epoch.

    A bar in the ``.err`` counts steps, the ``.out`` has the mean of each epoch: on one axis, epoch 1 is not step 1. The
    values stay at their epochs, see `Points.epochs`.
    """
    told = (r.facts["epoch_ends"] for r in outputs if r.step_axis == "step" and "epoch_ends" in r.facts)
    ends: dict[int, int] = next(told, {})
    for reading in outputs:
        points = reading.points
        if reading.step_axis != "epoch" or not len(points) or not set(points.step.tolist()) <= set(ends):
            continue
        step = np.array([ends[epoch] for epoch in points.step.tolist()])
        reading.points = Points(points.tags, points.code, step, points.value, points.wall_time, points.rank)
        reading.points.epochs = np.arange(len(points)), points.step
        reading.events = [
            replace(e, step=ends.get(e.step, e.step) if e.step is not None else None) for e in reading.events
        ]
        reading.step_axis = "step"
        reading.notes.append(
            "no step is printed: steps are epochs, ordered by the last step of each in the other output"
        )


def _move_failures_to_last_step(readings: list[Reading], outputs: list[Reading]) -> None:
    """Moves a failure after the last step that an output printed to the last step of a source that logs more often.

    Only within the interval at which the output prints: beyond it the other source may be of another attempt. An output
    without numbers (an ``.err``) has its steps from the one that has them.
    """
    prints = [r for r in outputs if (r.step_axis not in _NO_STEPS and len(r.points))]
    with_steps = [r.points for r in readings if r.step_axis not in _NO_STEPS and len(r.points)]
    reached = max((int(points.cells("step").max()) for points in with_steps), default=0)
    for reading in outputs:
        printed = reading if reading in prints else next(iter(prints[-1:]), None)
        if printed is None or (len(reading.points) and printed is not reading):
            continue
        steps = distinct(printed.points.cells("step"))
        last = int(steps[-1])
        if last < reached and len(steps) > 1 and reached <= last + median(np.diff(steps)):
            reading.events = [
                replace(e, step=reached) if e.step == last and e.severity == "error" else e for e in reading.events
            ]


def _quantity(tag: str) -> str:
    return role_of(tag) or tag.rsplit("/", 1)[-1]


def _console_events(reading: Reading, console: list[tuple[str, str]]) -> list[Event]:
    """The failures in the console output that a W&B run carries; sets how the reading ended, if it shows more."""
    from postmortem.readers.text.failures import find_events

    text = "".join(chunk for _, chunk in console)
    found = find_events(enumerate(text.split("\n"), 1), path=reading.path, source=reading.source)
    last = int(reading.points.cells("step").max()) if len(reading.points) else None
    if found.ended is not None and reading.ended in (None, "crashed"):
        reading.ended = found.ended
    return [replace(e, line=None, step=last if e.step is None else e.step) for e in found.events]


def _without_repeats(events: list[Event]) -> list[Event]:
    """Drops an event without a line that another source has with one (a W&B console and its output.log)."""
    placed = {(e.kind, e.message) for e in events if e.line is not None}
    return [e for e in events if e.line is not None or (e.kind, e.message) not in placed]


def _sources(readings: Sequence[tuple[Part, Reading]]) -> list[Source]:
    files: dict[str, list[str]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for part, reading in readings:
        files[reading.source].append(str(part.path))
        count[reading.source] += len(reading.points)
    return [Source(kind=kind, files=tuple(names), points=count[kind]) for kind, names in files.items()]


def _ended(readings: Sequence[tuple[Part, Reading]], streams: list[Stream], noted: Watched | None) -> Ended:
    """How the run ended, by the last file of each stream, else as noted by who watched it; "running" where the log is
    minutes old and names no end."""
    last = {part.stream: reading.ended for part, reading in readings}
    for ended in _MOST_SPECIFIC:
        if ended in last.values() and not (noted is not None and ended in ("running", "cut")):
            return ended
    if noted is not None:
        return noted.ended
    return "running" if _is_recent(streams) else "unknown"


def _is_recent(streams: list[Stream]) -> bool:
    """Whether the newest stream is silent for no longer than is usual between its rows."""
    times = [stream.points.take("wall_time", slice(-_NEWEST, None)) for stream in streams]
    times = [wall[np.isfinite(wall)] for wall in times]
    if max((float(wall.max()) for wall in times if len(wall)), default=0.0) < time.time() - _STILL_RUNNING_SECONDS[1]:
        return False  # whatever is usual
    known = [distinct(wall) for wall in times]
    newest = max((wall for wall in known if len(wall)), key=lambda wall: float(wall[-1]), default=None)
    if newest is None:
        return False
    usual = median(np.diff(newest[-1000:])) if len(newest) > 1 else np.inf
    return bool(0 <= time.time() - newest[-1] < np.clip(_STILL_RUNNING_ROWS * usual, *_STILL_RUNNING_SECONDS))
