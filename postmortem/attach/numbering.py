"""The history of a watched training counts optimizer steps (column `tick`); where each is a logged step, it gets that
number as well (column `step`), so that it can be laid beside the log.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.attach.steps import Mapping


def number_by_log(history: Path, mapping: Mapping | None) -> dict[int, int]:
    """Rewrites the files of a history as a whole, or leaves them as they are: where the log counts otherwise.

    -> tick: its number where that is not the tick.
    """
    steps = _steps(mapping) if mapping is not None else {}
    numbered = False
    for path in sorted(history.glob("history*.jsonl")) if steps else ():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        ticks = [row.get("tick") for row in rows]  # none in one that counts something else
        if not rows or not all(tick in steps for tick in ticks):
            continue
        new = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            new.write_text("".join(json.dumps({"step": steps[row["tick"]], **row}) + "\n" for row in rows))
            os.replace(new, path)
            numbered = True
        finally:
            new.unlink(missing_ok=True)
    return steps if numbered else {}


def _steps(mapping: Mapping) -> dict[int, int]:
    """Tick -> logged step; nothing where several ticks are one step, or a step has no tick."""
    steps: dict[int, int] = {}
    for step, p in mapping.numbered():
        steps[p.tick] = step
    return steps if len(set(steps.values())) == len(steps) else {}
