"""Scores the text reader on a folder of log samples with expected values and events.

    python benchmarks/logformats.py --samples DIR [--no-dialects] [--verbose]

`DIR/index.json` is a list of ``{"file", "expected": [{"tag", "step", "value", "rank"?, "epoch"?}], "expected_events":
[{"id", …}]}``. ``step`` null: no step can be known from the text, any will do; ``value`` null: the tag must not have
a finite value at that step; non-finite values are the strings nan, inf and -inf. An expected epoch counts where it
can be seen: as the step of an epoch axis, or as a tag `epoch` at the same step. Of events the id (a name that has it
as a prefix counts too), and the rank where one is expected.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from postmortem.core.model import Event
from postmortem.core.reading import Reading
from postmortem.readers.text import read_text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, required=True, help="folder with index.json and the logs it names")
    parser.add_argument("--no-dialects", action="store_true", help="only the general miner")
    parser.add_argument("--verbose", action="store_true", help="also list what was read of each sample")
    options = parser.parse_args()
    index = options.samples / "index.json"
    if not index.is_file():
        print(f"skipped: no {index}")
        return 0
    values = [0, 0]
    events = [0, 0]
    for entry in json.loads(index.read_text()):
        reading = read_text(options.samples / entry["file"], () if options.no_dialects else None)
        missed = [e for e in entry["expected"] if not _has_value(reading, e)]
        missed_events = [e for e in entry.get("expected_events", []) if not _has_event(reading, e)]
        values[0] += len(entry["expected"]) - len(missed)
        values[1] += len(entry["expected"])
        events[0] += len(entry.get("expected_events", [])) - len(missed_events)
        events[1] += len(entry.get("expected_events", []))
        for what in (*missed, *missed_events):
            print(f"{entry['file']}: missed {json.dumps(what)}")
        if options.verbose:
            print(
                f"{entry['file']}: {len(reading.points)} points, {reading.step_axis} axis; {'; '.join(reading.notes)}"
            )
    print(f"values {values[0]} of {values[1]}, events {events[0]} of {events[1]}")
    return 0 if values[0] == values[1] and events[0] == events[1] else 1


def _has_value(reading: Reading, expected: dict[str, Any]) -> bool:
    points = reading.points
    rows = [
        (int(s), float(v), int(r))
        for c, s, v, r in zip(points.code, points.step, points.value, points.rank, strict=True)
        if points.tags[c] == expected["tag"] and expected.get("step") in (None, int(s))
    ]
    if expected["value"] is None:
        return not any(math.isfinite(v) for _, v, _ in rows)
    if "rank" in expected:
        rank = -1 if expected["rank"] is None else expected["rank"]
        rows = [row for row in rows if row[2] == rank]
    wanted = float(expected["value"])
    rows = [row for row in rows if _same(row[1], wanted)]
    if "epoch" in expected and "epoch" in points.tags:
        code = points.tags.index("epoch")
        at = {
            int(s)
            for s, v in zip(points.step[points.code == code], points.value[points.code == code], strict=True)
            if _same(float(v), expected["epoch"])
        }
        rows = [row for row in rows if row[0] in at]
    elif "epoch" in expected and reading.step_axis == "epoch":
        rows = [row for row in rows if row[0] == expected["epoch"]]
    return bool(rows)


def _same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-9)


def _has_event(reading: Reading, expected: dict[str, Any]) -> bool:
    """Whether an event of that id has all expected fields; its rank may be one of several that reported the same."""
    return any(
        event.kind == expected["id"] and all(_says(event, k, v) for k, v in expected.items() if k not in ("id", "note"))
        for event in reading.events
    )


def _says(event: Event, key: str, value: Any) -> bool:
    if key == "rank":
        return value in (event.rank, *event.fields.get("ranks", ()))
    if key == "message":
        return value in event.message
    return bool(event.fields.get(key) == value)


if __name__ == "__main__":
    sys.exit(main())
