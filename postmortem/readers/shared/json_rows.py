"""Lines that hold a JSON object each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from postmortem.core.model import Problem
from postmortem.readers.shared.decode import begins_with_nuls

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Extent

_MOST_REPORTED = 20


def json_object(line: str) -> dict[str, Any] | None:
    """The object in a line; None if the line is anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def bad_lines(path: Path, bad: list[int], lines: int, rows: int) -> list[Problem]:
    """One Problem for each of the first lines `bad` (their numbers) of a file of `lines` lines and `rows` objects."""
    kept = f"{rows} rows"
    if bad and not rows:
        what = f"not JSON lines: {len(bad)} lines are not JSON objects"
        return [Problem(path=str(path), line=bad[0], what=what, kept="nothing", extent="file")]
    problems = []
    for line in bad[:_MOST_REPORTED]:
        extent: Extent
        what, extent = "this line is not a JSON object", "records"
        if line == lines:
            what, extent = "truncated: the last line is not a complete JSON object", "cut"
        elif line == 1 and begins_with_nuls(path):
            what, extent = "truncated: the first line is not a complete JSON object", "cut"
        problems.append(Problem(path=str(path), line=line, what=what, kept=kept, lost="1 line", extent=extent))
    if more := bad[_MOST_REPORTED:]:
        what, lost = f"{len(more)} more lines are not JSON objects", f"{len(more)} lines"
        problems.append(Problem(path=str(path), line=more[0], what=what, kept=kept, lost=lost))
    return problems
