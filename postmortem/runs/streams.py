"""Joins the numbers of a run's files to streams: what one writer wrote, file after file."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.points import Points
from postmortem.core.run import Stream, segments
from postmortem.runs.writers import at_once, same_numbers, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.reading import Reading
    from postmortem.runs.claimed import Part


def streams_of(readings: Sequence[tuple[Part, Reading]], notes: list[str]) -> list[Stream]:
    """The streams of a run. Processes of it that wrote the same metrics at the same time have one each.

    The tags of all but the first have a number behind them, unless the numbers are the same; `notes` says so.
    """
    grouped: dict[tuple[str, str], list[Points]] = defaultdict(list)
    times: dict[int, tuple[float, float]] = {}
    kept_apart: list[tuple[Points, int]] = []
    alone = len(readings) == 1  # then nothing was written at the same time
    for part, reading in readings:
        points = reading.points
        if not len(points):
            continue
        begin, end = times[id(points)] = (0.0, 0.0) if alone else span(part, reading)
        name, writer, repeated = part.stream, 1, False
        while rivals := [
            other
            for other in grouped[reading.source, name]
            if begin < times[id(other)][1] and times[id(other)][0] < end and at_once(other, points)
        ]:
            repeated = repeated or any(same_numbers(other, points) for other in rivals)
            writer += 1
            name = f"{part.stream} (writer {writer})"
        if repeated:
            notes.append(f"{part.path.name}: repeats the numbers of another file of the run, counted once")
        elif writer > 1:
            kept_apart.append((points, writer))
            notes.append(
                f"{part.path.name}: another process of the run wrote the same metrics at the same time: kept apart as "
                f"writer {writer}"
            )
        grouped[reading.source, name].append(points)
    for points, writer in kept_apart:
        points.tags = [f"{tag} (writer {writer})" for tag in points.tags]
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

    points = Points(tags, np.concatenate(codes), joined("step"), joined("value"), joined("wall_time"), joined("rank"))
    starts = np.cumsum([0, *map(len, parts[:-1])])
    placed = [
        (p.epochs[0] + start, p.epochs[1]) for p, start in zip(parts, starts, strict=True) if p.epochs is not None
    ]
    if placed:
        index, epoch = zip(*placed, strict=True)
        points.epochs = np.concatenate(index), np.concatenate(epoch)
    return points
