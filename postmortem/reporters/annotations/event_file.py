"""Findings as a TensorBoard event file of their own: texts for the Text tab, and points that mark their steps.

Formats: tensorflow/core/lib/io/record_writer.h for the records; event.proto, summary.proto and tensor.proto in
tensorboard/compat/proto for what is in them.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

import google_crc32c

from postmortem.core.annotations import SUFFIX
from postmortem.core.model import SEVERITIES
from postmortem.core.report import Report
from postmortem.readers.shared.protobuf import messages
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.shared.outline import folded, headline
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postmortem.core.report import RunReport

_EVENT = messages(
    "postmortem.annotation",
    """
    message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
    message Summary { repeated Value value = 1; }
    message Value { string tag = 1; float simple_value = 2; Tensor tensor = 8; Metadata metadata = 9; }
    message Metadata { PluginData plugin_data = 1; }
    message PluginData { string plugin_name = 1; }
    message Tensor { int32 dtype = 1; Shape shape = 2; repeated string string_val = 8; }
    message Shape { repeated Dim dim = 2; }
    message Dim { int64 size = 1; }
    """,
)["Event"]
_DT_STRING = 7
_MASK = 0xA282EAD8
_LEVEL = {severity: float(len(SEVERITIES) - i) for i, severity in enumerate(SEVERITIES)}
"""The value of the point that marks a finding: 3 for an error, 2 for a warning, 1 for information."""


def write_events(run: RunReport, folder: Path, version: str) -> Path:
    """Writes the report of a run and a mark for each finding into a new event file in `folder`; returns its path.

    The folder is made; of earlier calls only the own file there is removed. OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    file = folder / f"events.out.tfevents.{int(now)}.annotate{SUFFIX}"
    data = b"".join(_record(event.SerializeToString()) for event in _events(run, version, now))
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.write_bytes(data)
    for earlier in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        earlier.unlink()
    unfinished.replace(file)
    return file


def _events(run: RunReport, version: str, now: float) -> Iterator[Any]:
    yield _EVENT(wall_time=now, file_version="brain.Event:2")
    report = REPORTERS["markdown"](Report(runs=(run,), version=version), RenderOptions(verbose=True))
    yield _text("postmortem/report", report, run.last_step or 0, now)
    roots = [fold.first for fold in folded(run)]
    others = [f for f in run.findings if f not in roots]
    for finding in sorted((f for f in [*roots, *others] if f.step is not None), key=lambda f: f.step or 0):
        tag = f"postmortem/{clean(finding.code)} {clean(finding.name)}"
        when = finding.wall_time if finding.wall_time is not None else now
        yield _text(tag, f"{clean(finding.message)}\n\n{headline(run)}", finding.step or 0, when)
        yield _point(f"{tag} (step)", _LEVEL[finding.severity], finding.step or 0, when)


def _text(tag: str, markdown: str, step: int, wall_time: float) -> Any:
    event = _EVENT(wall_time=wall_time, step=step)
    value = event.summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "text"
    value.tensor.dtype = _DT_STRING
    value.tensor.shape.dim.add(size=1)
    value.tensor.string_val.append(markdown.encode("utf-8", "replace").decode("utf-8"))
    return event


def _point(tag: str, number: float, step: int, wall_time: float) -> Any:
    event = _EVENT(wall_time=wall_time, step=step)
    event.summary.value.add(tag=tag, simple_value=number)
    return event


def _record(data: bytes) -> bytes:
    """One TFRecord: the length, the data, and the masked CRC32C of each."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
