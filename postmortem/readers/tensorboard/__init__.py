"""Reads TensorBoard event files."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.readers import reader
from postmortem.readers.shared.damage import Damage, problems_of
from postmortem.readers.shared.protobuf import DecodeError
from postmortem.readers.tensorboard.bulk_scalars import ScalarPatterns
from postmortem.readers.tensorboard.event_proto import EVENT, HISTOGRAM, HPARAMS, number
from postmortem.readers.tensorboard.tfrecord import HEADER, OVERHEAD, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postmortem.readers import Content
    from postmortem.readers.tensorboard.bulk_scalars import Scalars
    from postmortem.readers.tensorboard.tfrecord import Batch

_NAME = re.compile(r"tfevents\.\d+\.(?P<host>.+?)(\.\d+\.\d+)?(\.v2)?(\.profile-empty)?$")
_GRADIENT = re.compile(
    rb"(?i)(?:^|[/._])(?:grads?|gradients?)(?:[/._].*(?<!bias)$|$)|(?<!bias)[/._](?:grads?|gradients?)$"
)
_NO_SUMMARY = {"graph": "graphs", "meta_graph": "graphs", "run_metadata": "run metadata", "log_message": "log messages"}
_OLD_KINDS = {
    "histo": "histograms",
    "histogram": "histograms",
    "image": "images",
    "audio": "audio",
    "tensor": "tensors",
}
_PLUGINS = {"text": "text", "scalars": "tensors", "pr_curves": "pr curves"}


@reader
class TensorBoard:
    """TensorBoard event files, as TensorFlow, torch, tensorboardX and clu write them.

    A file is a sequence of TFRecords, each with an Event message: wall time, step (0 is left out on the wire) and a
    summary of values. A scalar is a `simple_value`, or in TF2 a tensor of one element, of any float, integer or
    boolean type, as raw bytes or as a typed list. Histograms, images, audio, text and graphs are counted, hparams go
    to the run's config. A histogram of a weight's gradient (``grads/layer0.weight``) gives the gradient's norm. All
    checksums are verified. Damage costs only the records it touches: reading continues at the next header with a
    valid checksum.

    Formats: tensorflow/core/lib/io/record_writer.h; event.proto, summary.proto and tensor.proto in
    tensorboard/compat/proto.
    """

    kind: ClassVar[str] = "tensorboard"
    priority: ClassVar[int] = 10
    content: ClassVar[Content] = "events"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file with "tfevents" in its name."""
        return "tfevents" in path.name

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole event file."""
        return _File(path).read()


class _File:
    """The state of reading one event file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = Reading(source=TensorBoard.kind, path=str(path))
        self.codes: dict[bytes, int] = {}
        self.plugins: dict[bytes, str] = {}
        self.skipped: Counter[str] = Counter()
        self.damage: list[Damage] = []
        self.records = 0
        self.first_time = math.inf

    def read(self) -> Reading:
        builder = PointsBuilder()
        patterns = ScalarPatterns(self.code_of)
        with self.path.open("rb") as stream:
            for batch in batches(stream, self.damage):
                columns = self.merged(patterns.read(batch), batch)
                builder.extend_columns([t.decode("utf-8", "replace") for t in self.codes], *columns)
            size = stream.tell()
        reading = self.reading
        reading.points = builder.build()
        reading.skipped = dict(self.skipped)
        reading.problems = problems_of(reading.path, "an event file", self.damage, self.records, size)
        if not size:
            reading.problems = [
                Problem(path=reading.path, offset=0, what="the file is empty: its writer never flushed", kept="nothing")
            ]
        elif self.records and not len(reading.points):
            reading.notes.append("an event file without scalars")
        times = reading.points.wall_time[reading.points.wall_time > 0]
        if len(times):
            reading.started, reading.stopped = float(min(times[0], self.first_time)), float(times[-1])
        if name := _NAME.search(self.path.name):
            reading.facts["host"] = name["host"]
        return reading

    def code_of(self, tag: bytes) -> int:
        """The code of a tag."""
        return self.codes.setdefault(tag, len(self.codes))

    def merged(self, bulk: Scalars, batch: Batch) -> list[Any]:
        """Code, step, value and wall time of the batch's scalars, in file order."""
        self.records += int(np.count_nonzero(bulk.known))
        rest = [row for i in np.flatnonzero(~bulk.known) for row in self.parse(int(i), batch)]
        columns = [column[bulk.known] for column in bulk[1:]]
        if not rest:
            return columns
        at, *parsed = zip(*rest, strict=True)
        order = np.argsort(np.concatenate([np.flatnonzero(bulk.known), at]), kind="stable")
        return [
            np.concatenate([column, np.array(more, column.dtype)])[order]
            for column, more in zip(columns, parsed, strict=True)
        ]

    def parse(self, i: int, batch: Batch) -> Iterator[tuple[int, int, int, float, float]]:
        """The scalars of the i-th record: `i`, code of the tag, step, value, wall time."""
        payload = batch.payload(i)
        try:
            event = EVENT.FromString(payload) if payload is not None else None
        except DecodeError:
            event = None
        if event is None:
            start, length = int(batch.start[i]), int(batch.length[i])
            self.damage.append(Damage(batch.offset + start - HEADER, batch.offset + start + length + OVERHEAD - HEADER))
            return
        self.records += 1
        if event.wall_time > 0:
            self.first_time = min(self.first_time, event.wall_time)
        self.skipped.update(name for field, name in _NO_SUMMARY.items() if event.HasField(field))
        for value in event.summary.value:
            scalar = self.scalar(value)
            if scalar is not None:
                yield i, self.code_of(value.tag), event.step, scalar, event.wall_time
            elif (norm := _gradient_norm(value)) is not None:
                yield i, self.code_of(value.tag + b"/norm"), event.step, norm, event.wall_time

    def scalar(self, value: Any) -> float | None:
        """The number in a summary value; a value without one is counted by its kind."""
        plugin = value.metadata.plugin_data.plugin_name.decode("utf-8", "replace") or self.plugins.get(value.tag, "")
        self.plugins[value.tag] = plugin
        if value.HasField("simple_value"):
            return float(value.simple_value)
        scalar = number(value.tensor) if value.HasField("tensor") else None
        if scalar is None:
            if plugin == "hparams":
                self.reading.config.update(_hparams(value.metadata.plugin_data.content))
            old = next((name for field, name in _OLD_KINDS.items() if value.HasField(field)), "other values")
            self.skipped[_PLUGINS.get(plugin, plugin) or old] += 1
        return scalar


def _gradient_norm(value: Any) -> float | None:
    """The norm of a weight's gradient of which a histogram was logged; None for any other value.

    Gradients of biases are left out: that of a bias before a batch normalisation is zero in a healthy model.
    """
    if not value.HasField("histo") or _GRADIENT.search(value.tag) is None:
        return None
    try:
        histogram = HISTOGRAM.FromString(value.histo)
    except DecodeError:
        return None
    return math.sqrt(histogram.sum_squares) if histogram.num > 0 and histogram.sum_squares >= 0 else None


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
