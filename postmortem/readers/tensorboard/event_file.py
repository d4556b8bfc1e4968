"""Reads the records of one event file."""

from __future__ import annotations

import math
import os
import re
from io import FileIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.activations import SIZE, names_activations
from postmortem.core.model import Problem
from postmortem.core.points import Points, PointsBuilder
from postmortem.core.progress import progressed
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip, Skips
from postmortem.readers.shared.damage import Damage, problems_of
from postmortem.readers.shared.protobuf import DecodeError
from postmortem.readers.tensorboard.bulk_scalars import FEW, ScalarPatterns
from postmortem.readers.tensorboard.event_proto import EVENT, HISTOGRAM, HPARAMS, blob_event, number
from postmortem.readers.tensorboard.framing import HEADER, OVERHEAD
from postmortem.readers.tensorboard.long_row import LongRow
from postmortem.readers.tensorboard.rows import RowLayouts
from postmortem.readers.tensorboard.texts import settings_in
from postmortem.readers.tensorboard.tfrecord import PIECE, batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.row_layout import RowLayout, Rows
    from postmortem.readers.tensorboard.tfrecord import Batch

    _Point = tuple[int, int, int, float, float]
    """Where the payload of its record begins in the batch, code of the tag, step, value, wall time."""
    _Columns = tuple[NDArray[Any], ...]
    """The same of many points."""

KIND = "tensorboard"
_LAYOUTS = RowLayouts({})
"""Shared by all files: runs of one project log the same rows."""
_NONE = tuple(np.empty(0, kind) for kind in (np.int64, np.int32, np.int64, np.float64, np.float64))
"""The columns of no points."""
_WALL_TIME, _VERSION = 1 << 3 | 1, b"\x1a\rbrain.Event:2"
"""The first record of a file: the key of its wall time, and what follows the wall time."""
_MOST_TEXT = 1 << 22
"""Characters of texts that are kept to be searched for failures."""
_NAME = re.compile(r"tfevents\.\d+\.(?P<host>.+?)(\.\d+\.\d+)?(\.v2)?(\.profile-empty)?$")
_GRADIENT = re.compile(
    rb"(?i)(?:^|[/._])(?:grads?|gradients?)(?:[/._].*(?<!bias)$|$)|(?<!bias)[/._](?:grads?|gradients?)$"
)
_NO_SUMMARY = {
    "graph": Skip.GRAPHS,
    "meta_graph": Skip.GRAPHS,
    "run_metadata": Skip.RUN_METADATA,
    "log_message": Skip.LOG_MESSAGES,
}
_OLD_KINDS = {
    "histo": Skip.HISTOGRAMS,
    "histogram": Skip.HISTOGRAMS,
    "image": Skip.IMAGES,
    "audio": Skip.AUDIO,
    "tensor": Skip.TENSORS,
}
_PLUGINS = {
    "text": Skip.TEXT,
    "scalars": Skip.TENSORS,
    "pr_curves": Skip.CURVES,
    "histograms": Skip.HISTOGRAMS,
    "images": Skip.IMAGES,
    "audio": Skip.AUDIO,
    "hparams": Skip.HPARAMS,
}


class Following:
    """An event file that grows. After damage it is read anew: what follows may show how long a damaged record is."""

    def __init__(self, path: Path) -> None:
        self._file = EventFile(path)

    @property
    def size(self) -> int:
        """Bytes that were read."""
        return self._file.size

    def read(self) -> Reading:
        if not all(damage.cut for damage in self._file.damage):
            self._file = EventFile(self._file.path)
        reading = self._file.read()
        reading.points = reading.points.chosen(np.ones(len(reading.points), bool))  # a copy: those of the file go on
        return reading


class EventFile:
    """The state of reading one event file; `size` is the number of bytes that were read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.config: dict[str, Any] = {}
        self.parts: list[list[NDArray[Any]]] = []
        self.codes: dict[bytes, int] = {}
        self.plugins: dict[bytes, str] = {}
        self.skipped = Skips()
        self.damage: list[Damage] = []
        self.records = 0
        self.first_time = math.inf
        self.said: list[tuple[str, str]] = []
        self.texts = 0

    def read(self) -> Reading:
        """All that the file holds. Called again after bytes were appended, it reads only these."""
        patterns = ScalarPatterns(self.code_of)
        with FileIO(self.path) as stream:
            whole = os.fstat(stream.fileno()).st_size
            _LAYOUTS.opened(whole)
            stream.seek(self.resumed_at())
            self.damage.clear()
            for batch in batches(stream, self.damage, _LAYOUTS):
                self.parts.append(self.columns(patterns, batch))
                if batch.rows and not batch.offset and whole <= PIECE:
                    _LAYOUTS.beginnings.learn(batch.rows, batch.padded)
                progressed(str(self.path), min(batch.offset, whole), whole)
            self.size = stream.tell()
        if len(self.parts) > 1:
            self.parts = [[np.concatenate(column) for column in zip(*self.parts, strict=True)]]
        points, skipped = self.points(), Skips(self.skipped)
        reading = Reading(source=KIND, path=str(self.path), points=points, skipped=skipped, config=dict(self.config))
        reading.problems = problems_of(reading.path, "an event file", self.damage, self.records, self.size)
        if not self.size:
            reading.problems = [
                Problem(
                    path=reading.path,
                    offset=0,
                    what="the file is empty: its writer never flushed",
                    kept="nothing",
                    extent="file",
                )
            ]
        elif self.records and not len(reading.points):
            reading.notes.append("an event file without scalars")
        times = reading.points.wall_time
        if not times.min(initial=np.inf) > 0:  # one is unknown, or NaN
            times = times[times > 0]
        if len(times):
            reading.started, reading.stopped = float(min(times[0], self.first_time)), float(times[-1])
        if self.said:
            reading.facts["console"] = [*self.said]
        if name := _NAME.search(self.path.name):
            reading.facts["host"] = name["host"]
        return reading

    def points(self) -> Points:
        """The scalars that were read up to now. Their columns are those of the file."""
        tags = [tag.decode("utf-8", "replace") for tag in self.codes]
        if self.parts and len({*tags}) == len(tags):
            code, step, value, wall_time = self.parts[0]
            rank = np.empty(len(code), np.int16)
            rank.fill(-1)
            return Points(tags, code, step, value, wall_time, rank)
        builder = PointsBuilder()  # joins tags that are one once decoded
        if self.parts:
            builder.extend_columns(tags, *self.parts[0])
        return builder.build()

    def resumed_at(self) -> int:
        """Where the whole records that were read end: at the end of the file, or where a record was cut by it."""
        return min((damage.start for damage in self.damage), default=self.size)

    def code_of(self, tag: bytes) -> int:
        """The code of a tag."""
        return self.codes.setdefault(tag, len(self.codes))

    def columns(self, patterns: ScalarPatterns, batch: Batch) -> list[NDArray[Any]]:
        """Code, step, value and wall time of the batch's scalars, in file order."""
        parts: list[_Columns] = [
            part for layout, rows in _by_layout(batch.rows) for part in self.in_rows(layout, rows, batch)
        ]
        if len(batch.start) < FEW:
            few = zip(batch.start.tolist(), batch.length.tolist(), strict=True)
            parts.append(_columns(row for start, length in few for row in self.parse(start, length, batch)))
        else:
            bulk = patterns.read(batch)
            self.records += int(np.count_nonzero(bulk.known))
            parts.append((batch.start[bulk.known], *(column[bulk.known] for column in bulk[1:])))
            others = zip(batch.start[~bulk.known].tolist(), batch.length[~bulk.known].tolist(), strict=True)
            parts.append(_columns(row for start, length in others for row in self.parse(start, length, batch)))
        return _in_order([part for part in parts if len(part[0])])

    def in_rows(self, layout: RowLayout, found: list[Rows], batch: Batch) -> Iterator[_Columns]:
        """The scalars of all rows of one layout; those with a wrong checksum are parsed one by one."""
        one = found[0] if len(found) == 1 else None
        fields = layout.fields(one.difference if one else np.concatenate([rows.difference for rows in found]))
        begins = [rows.at + np.arange(len(rows.difference)) * layout.size for rows in found]
        at = (begins[0] if one else np.concatenate(begins))[:, None] + layout.start
        intact: Any = slice(None)
        if fields.intact is not None:
            intact = fields.intact
            damaged = [(int(at[i, j]), int(layout.length[j])) for i, j in np.argwhere(~intact)]
            yield _columns(row for start, length in damaged for row in self.parse(start, length, batch))
        code = layout.tag
        if not self.codes:
            self.codes.update(layout.codes)
        else:
            code = np.array([self.code_of(tag) for tag in layout.codes], np.int32).take(code)
        self.plugins.update(layout.plugins)
        columns = (at, code[None].repeat(len(at), axis=0), fields.step, fields.value, fields.wall_time)
        part = tuple(column[intact].ravel() for column in columns)
        self.records += len(part[0])
        yield part

    def parse(self, start: int, length: int, batch: Batch) -> Iterator[_Point]:
        """The scalars of the record whose payload begins at `start`."""
        payload = batch.payload(start, length)
        if payload is not None and payload[8 + 1 :].tobytes() == _VERSION and payload[0] == _WALL_TIME:
            self.counted(float(payload[1:9].view("<f8")[0]))
            return
        blob = blob_event(payload) if payload is not None else None
        if blob is not None and blob.finite and not (blob.field == "histo" and _is_measured(blob.tag)):
            self.counted(blob.wall_time)
            self.skip(self.plugin(blob.tag, ""), _OLD_KINDS[blob.field])
            return
        try:
            event = EVENT.FromString(payload.tobytes()) if payload is not None else None
        except DecodeError:
            event = None
        if event is None:
            self.damage.append(Damage(batch.offset + start - HEADER, batch.offset + start + length + OVERHEAD - HEADER))
            return
        self.counted(event.wall_time)
        self.skipped.update(name for field, name in _NO_SUMMARY.items() if event.HasField(field))
        for value in event.summary.value:
            scalar = self.scalar(value)
            if scalar is not None:
                yield start, self.code_of(value.tag), event.step, scalar, event.wall_time
            elif (norm := _gradient_norm(value)) is not None:
                yield start, self.code_of(value.tag + b"/norm"), event.step, norm, event.wall_time
            elif (limit := _nonfinite_limit(value)) is not None:
                yield start, self.code_of(value.tag + b"/" + limit[0]), event.step, limit[1], event.wall_time
            elif (size := _size_of_activations(value)) is not None:
                yield start, self.code_of(value.tag + SIZE.encode()), event.step, size, event.wall_time

    def counted(self, wall_time: float) -> None:
        """Counts a record of that time."""
        self.records += 1
        if wall_time > 0:
            self.first_time = min(self.first_time, wall_time)

    def plugin(self, tag: bytes, named: str) -> str:
        """The plugin of a tag: that which this value of it names, else the one that an earlier value named."""
        self.plugins[tag] = plugin = named or self.plugins.get(tag, "")
        return plugin

    def skip(self, plugin: str, kind: Skip) -> None:
        """Counts a value without a number, by its plugin if it has one."""
        self.skipped[_PLUGINS.get(plugin, Skip.OTHER_PLUGINS) if plugin else kind] += 1

    def scalar(self, value: Any) -> float | None:
        """The number in a summary value; a value without one is counted by its kind."""
        plugin = self.plugin(value.tag, value.metadata.plugin_data.plugin_name.decode("utf-8", "replace"))
        if value.HasField("simple_value"):
            return float(value.simple_value)
        scalar = number(value.tensor) if value.HasField("tensor") else None
        if scalar is None:
            if plugin == "text":
                self.add_text(value.tensor)
            if plugin == "hparams":
                self.config.update(_hparams(value.metadata.plugin_data.content))
            self.skip(plugin, next((n for field, n in _OLD_KINDS.items() if value.HasField(field)), Skip.OTHER_VALUES))
        return scalar

    def add_text(self, tensor: Any) -> None:
        """Settings go to the config; other texts are searched for failures later, as the output of a program is."""
        text = b"\n".join(tensor.string_val).decode("utf-8", "replace")
        if found := settings_in(text):
            self.config.update(found)
        elif self.texts < _MOST_TEXT:
            self.texts += len(text)
            self.said.append(("text", text + "\n"))


def _by_layout(found: list[Rows]) -> Iterable[tuple[RowLayout, list[Rows]]]:
    """The rows by their layout; long ones one by one."""
    groups: dict[tuple[int, int], tuple[RowLayout, list[Rows]]] = {}
    for rows in found:
        key = id(rows.layout), rows.at if isinstance(rows.layout, LongRow) else 0
        groups.setdefault(key, (rows.layout, []))[1].append(rows)
    return groups.values()


def _columns(points: Iterable[_Point]) -> _Columns:
    """Points as columns."""
    if not (points := list(points)):
        return _NONE
    at, code, step, value, wall_time = zip(*points, strict=True)
    return (
        np.array(at, np.int64),
        np.array(code, np.int32),
        np.array(step, np.int64),
        np.array(value, np.float64),
        np.array(wall_time, np.float64),
    )


def _in_order(parts: list[_Columns]) -> list[NDArray[Any]]:
    """Code, step, value and wall time of all points of the parts, each of which is in order of the file."""
    if len(parts) == 1:
        return [*parts[0][1:]]
    parts.sort(key=lambda part: part[0][0])
    at, *columns = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else _NONE
    if all(before[0][-1] < after[0][0] for before, after in pairwise(parts)):
        return columns
    order = np.argsort(at, kind="stable")
    return [column[order] for column in columns]


def _is_measured(tag: bytes) -> bool:
    """Whether a number is read from the histograms of this tag, although they are finite."""
    return _GRADIENT.search(tag) is not None or _of_activations(tag)


def _gradient_norm(value: Any) -> float | None:
    """The norm of a weight's gradient of which a histogram was logged; None for any other value.

    Gradients of biases are left out: that of a bias before a batch normalisation is zero in a healthy model.
    """
    histogram = _histogram(value) if _GRADIENT.search(value.tag) is not None else None
    if histogram is None:
        return None
    return math.sqrt(histogram.sum_squares) if histogram.num > 0 and histogram.sum_squares >= 0 else None


def _of_activations(tag: bytes) -> bool:
    return names_activations(tag.decode("utf-8", "replace"))


def _size_of_activations(value: Any) -> float | None:
    """The root mean square of a layer's activations of which a histogram was logged; None for any other value."""
    histogram = _histogram(value) if _of_activations(value.tag) else None
    if histogram is None or not (histogram.num > 0 and histogram.sum_squares >= 0):
        return None
    return math.sqrt(histogram.sum_squares / histogram.num)


def _histogram(value: Any) -> Any:
    """The numbers of a histogram, without its buckets; None for any other value."""
    try:
        return HISTOGRAM.FromString(value.histo) if value.HasField("histo") else None
    except DecodeError:
        return None


def _nonfinite_limit(value: Any) -> tuple[bytes, float] | None:
    """The first of minimum, maximum and sums of a histogram that is NaN or infinite, with its name; None if none is."""
    histogram = _histogram(value)
    if histogram is None:
        return None
    limits = ((name, getattr(histogram, name)) for name in ("min", "max", "sum", "sum_squares"))
    return next(((name.encode(), number) for name, number in limits if not math.isfinite(number)), None)


def _hparams(content: bytes) -> dict[str, Any]:
    """The settings in a value of the hparams plugin; empty if it holds something else."""
    try:
        entries = HPARAMS.FromString(content).session_start.hparams
    except DecodeError:
        return {}
    settings: dict[str, Any] = {}
    for entry in entries:
        kind = next((k for k in ("number", "text", "truth") if entry.value.HasField(k)), None)
        settings[entry.key] = getattr(entry.value, kind) if kind else None
    return settings
