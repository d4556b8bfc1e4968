"""Reads the records of one W&B transaction log."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.progress import progressed
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip
from postmortem.readers.shared.damage import Damage, problems_of
from postmortem.readers.shared.protobuf import DecodeError, messages, varint
from postmortem.readers.wandb.history_rows import OWN_KEYS, SEPARATOR, History
from postmortem.readers.wandb.leveldb_log import records
from postmortem.readers.wandb.plain_rows import plain_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from postmortem.readers.wandb.plain_rows import PlainRows

KIND = "wandb"
_CLASSES = messages(
    "postmortem.wandb",
    """
    message Record { History history = 2; Items summary = 3; Output output = 4; Items config = 5; bytes stats = 7;
                     bytes artifact = 8; bytes alert = 10; Metric metric = 12; Output output_raw = 13;
                     Run run = 17; Exit exit = 18; Environment environment = 26; }
    message History { repeated Item item = 1; Step step = 2; }
    message Step { int64 num = 1; }
    message Items { repeated Item update = 1; repeated Item remove = 2; }
    message Item { bytes key = 1; repeated bytes nested_key = 2; bool boolean = 4; sint64 integer = 5;
                   double number = 6; bytes text = 7; bytes json = 8; bytes value_json = 16; }
    message Output { int32 output_type = 1; bytes line = 3; }
    message Metric { bytes name = 1; bytes glob_name = 2; bytes step_metric = 4; }
    message Run { bytes run_id = 1; bytes project = 3; Items config = 4; Items summary = 5; bytes display_name = 8;
                  bytes host = 13; Timestamp start_time = 17; }
    message Timestamp { int64 seconds = 1; int32 nanos = 2; }
    message Exit { int32 exit_code = 1; }
    message Environment { bytes program = 6; bytes host = 12; repeated Entry slurm = 27; }
    message Entry { bytes key = 1; bytes value = 2; }
    """,
)
RECORD, HISTORY, ITEMS = _CLASSES["Record"], _CLASSES["History"], _CLASSES["Items"]
_ALONE = re.compile(rb"(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?([\x12\x1a])([\x80-\xff]{0,4}[\x00-\x7f])")
"""The beginning of a record that holds a row of the history or an update of the summary, and its length."""
_BLOCK = 4096
"""Rows that are read at once."""

_OWN_ITEM = re.compile(rb"\n([\x00-\x7f])[\n\x12](?:\x05_step|\x08_runtime|\x0a_timestamp|\x06_wandb)")
_SEEN = {"stats": Skip.SYSTEM_METRICS, "artifact": Skip.ARTIFACTS, "alert": Skip.ALERTS}
_STREAMS = ("stderr", "stdout")


class TransactionLog:
    """The state of reading one transaction log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = Reading(source=KIND, path=str(path), step_axis="_step")
        self.history_rows = History(self.reading)
        self.skipped = self.reading.skipped
        self.console: list[tuple[str, str]] = []
        self.unfinished: dict[str, list[bytes]] = {stream: [] for stream in _STREAMS}  # a line arrives in pieces
        self.exit_code: int | None = None
        self.rows: list[bytes] = []
        self.updates: list[bytes] = []
        self.declared_steps: dict[str, str] = {}
        """The column that `define_metric` declared as the step of a tag, or of those that match a pattern."""

    def read(self) -> Reading:
        data = self.path.read_bytes()
        damage: list[Damage] = []
        count = done = 0
        for payload in records(data, damage):
            done += len(payload)
            count += self.record(payload)
            if len(self.rows) == _BLOCK:
                count -= self.take_rows()
                progressed(str(self.path), done, len(data))
            if len(self.updates) == _BLOCK:
                count -= self.take_updates()
        count -= self.take_rows() + self.take_updates()
        reading = self.reading
        self.console += [(stream, _text(b"".join(pieces))) for stream, pieces in self.unfinished.items() if any(pieces)]
        reading.facts |= {"exit_code": self.exit_code, "console": self.console}
        if self.exit_code is not None:
            reading.ended = "completed" if self.exit_code == 0 else "crashed"
        reading.problems = problems_of(reading.path, "a W&B log", damage, count, len(data))
        if not count and not reading.problems:
            what = (
                "the file contains only its header: the run was killed before anything was written"
                if data
                else "the file is empty"
            )
            reading.problems = [Problem(path=reading.path, offset=len(data), what=what, kept="nothing", extent="file")]
        self.history_rows.finish(self.declared_steps)
        return reading

    def record(self, payload: bytes) -> bool:
        """Takes in one record; rows of the history and updates of the summary wait. Whether it could be parsed."""
        alone = _ALONE.match(payload)
        if alone is not None and alone.end() + _size(alone[2]) == len(payload):
            body = payload[alone.end() :]
            if alone[1] == b"\x12":
                self.rows.append(body)
            elif not _holds_own_keys_only(body):
                self.updates.append(body)
            return True
        try:
            record = RECORD.FromString(payload)
        except DecodeError:
            self.skipped[Skip.UNKNOWN_RECORDS] += 1
            return False
        self.take(record)
        return True

    def take_rows(self) -> int:
        """Takes in the rows that wait; returns how many of them could not be parsed."""
        rows, self.rows = self.rows, []
        if not rows:
            return 0
        found = plain_rows(rows)
        values = found.numbers()
        plain, wrong = found.plain & (found.step >= 0), 0
        borders = [0, *(np.flatnonzero(plain[1:] != plain[:-1]) + 1).tolist(), len(rows)]
        for start, stop in pairwise(borders):
            if plain[start]:
                self.take_plain_rows(found, values, start, stop)
                continue
            for row in rows[start:stop]:
                try:
                    self.history(HISTORY.FromString(row))
                except DecodeError:
                    self.skipped[Skip.UNKNOWN_RECORDS] += 1
                    wrong += 1
        return wrong

    def take_plain_rows(self, found: PlainRows, values: NDArray[np.float64], start: int, stop: int) -> None:
        """Takes in adjacent plain rows."""
        cells = found.within(start, stop)
        row, key, value = found.row[cells] - start, found.key[cells], values[cells]
        times = np.full(stop - start, math.nan)
        if "_timestamp" in found.keys:
            timed = key == found.keys.index("_timestamp")
            times[row[timed]] = value[timed]
        rows = self.history_rows
        rows.steps += found.step[start:stop].tolist()
        rows.times += times.tolist()
        rows.table.add_rows(stop - start, found.keys, row, key, value)

    def take_updates(self) -> int:
        """Applies the updates of the summary that wait; returns how many of them could not be parsed."""
        updates, self.updates = self.updates, []
        if not updates:
            return 0
        found = plain_rows(updates)
        plain, wrong = found.plain & (found.step < 0), 0
        borders = [0, *(np.flatnonzero(plain[1:] != plain[:-1]) + 1).tolist(), len(updates)]
        for start, stop in pairwise(borders):
            if plain[start]:
                texts = found.last(start, stop).items()
                numbers = {name: _loads(text, json.loads) for name, text in texts if name not in OWN_KEYS}
                self.reading.summary.update(numbers)
                continue
            for update in updates[start:stop]:
                try:
                    self.set(self.reading.summary, ITEMS.FromString(update))
                except DecodeError:
                    self.skipped[Skip.UNKNOWN_RECORDS] += 1
                    wrong += 1
        return wrong

    def take(self, record: Any) -> None:
        """Takes in one record."""
        for field, content in record.ListFields():
            name = field.name
            if name == "history":
                self.rows.append(content.SerializeToString())
            elif name == "summary":
                self.updates.append(content.SerializeToString())
            elif name in ("output", "output_raw"):
                self.print(_STREAMS[content.output_type == 1], content.line)
            elif name == "config":
                self.set(self.reading.config, content)
            elif name == "run":
                self.run(content)
            elif name == "exit":
                self.exit_code = content.exit_code
            elif name == "metric" and content.step_metric:
                self.declared_steps[_text(content.glob_name or content.name)] = _text(content.step_metric)
            elif name == "environment":
                slurm = {_text(entry.key).lower().removeprefix("slurm_"): _text(entry.value) for entry in content.slurm}
                self.reading.facts |= {"job_id": slurm["job_id"]} if "job_id" in slurm else {}
            elif name in _SEEN:
                self.skipped[_SEEN[name]] += 1

    def run(self, run: Any) -> None:
        """The identity of the run, its start, and its first settings."""
        self.set(self.reading.config, run.config)
        self.updates.append(run.summary.SerializeToString())
        names = {"run_id": run.run_id, "project": run.project, "display_name": run.display_name, "host": run.host}
        self.reading.facts |= {key: _text(value) for key, value in names.items() if value}
        if run.start_time.seconds > 0:
            self.reading.started = run.start_time.seconds + run.start_time.nanos / 1e9

    def print(self, stream: str, text: bytes) -> None:
        """Console output comes in pieces; it is kept as whole lines, so that the streams do not cut each other's."""
        first, *more = text.split(b"\n")
        pieces = self.unfinished[stream]
        pieces.append(first)
        for line in more:
            self.console.append((stream, _text(b"".join(pieces)) + "\n"))
            pieces[:] = [line]

    def set(self, target: dict[str, Any], items: Any) -> None:
        """Applies updates and removals of config or summary to a nested dict."""
        for item in items.update:
            *above, last = _path(item)
            if (above or [last])[0] in OWN_KEYS:
                continue
            level = target
            for key in above:
                if not isinstance(level.get(key), dict):
                    level[key] = {}
                level = level[key]
            level[last] = _value(item, json.loads)
        for item in items.remove:
            *above, last = _path(item)
            inner: Any = target
            for key in above:
                inner = inner.get(key) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner.pop(last, None)

    def history(self, history: Any) -> None:
        """One row: the values of one or more calls of `log` with the same step."""
        values: dict[str, Any] = {}
        for item in history.item:
            name, value = SEPARATOR.join(_path(item)), _value(item)
            values[name] = value
        self.history_rows.add(values, history.step.num if history.HasField("step") else None)


@lru_cache(maxsize=4096)
def _size(digits: bytes) -> int:
    """The length of a record: most records of a log have one of a few hundred."""
    return varint(digits)


def _holds_own_keys_only(update: bytes) -> bool:
    """Whether an update of the summary holds nothing but W&B's own keys, as every second one does."""
    at = 0
    while item := _OWN_ITEM.match(update, at):
        at += 2 + item[1][0]
    return at == len(update)


_INFINITE = (math.inf, -math.inf)


def _path(item: Any) -> list[str]:
    return [_text(k) for k in item.nested_key] or [_text(item.key)]


def _value(item: Any, fast: Callable[[bytes], Any] = float) -> Any:
    """The value of an item: JSON text as Python writes it, or one of the typed fields of newer clients."""
    if item.HasField("value_json"):
        return _loads(item.value_json, fast)
    for field in ("number", "integer", "boolean"):
        if item.HasField(field):
            return getattr(item, field)
    if item.HasField("text"):
        return _text(item.text)
    return _loads(item.json, json.loads) if item.HasField("json") else None


def _loads(text: bytes, fast: Callable[[bytes], Any]) -> Any:
    """`text` as JSON, parsed by `fast` first: most values of a history are numbers, which `float` reads faster."""
    for parse in (fast, json.loads):
        try:
            found = parse(text)
        except (ValueError, RecursionError):
            continue
        if found in _INFINITE and text.strip(b" +-").isdigit():
            continue  # float() makes an infinity of 309 digits
        return found
    return _text(text)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
