"""The file of a metric's finding, and its line: for annotations in code review, where a finding needs a place."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.patterns import later
from postmortem.core.view import View
from postmortem.readers.shared.json_numbers import written_number
from postmortem.runs.file_names import rank_in_name, rank_of_folder, torchrun_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from postmortem.core.model import Finding
    from postmortem.core.run import Run
    from postmortem.core.series import Series

_LARGEST = 1 << 28  # bytes; the lines of a larger log are not searched for
_LONGEST = 20_000  # bytes of a line that are looked at
_ROUNDED = 0.0005  # what four printed digits leave open: a log prints fewer than a binary file holds
_NUMBER = later(
    r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?|\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)(?![a-z])", re.IGNORECASE
)


def located(run: Run, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings about a metric with the `file` of their source in the evidence, and the `line` (from 1) if found.

    The file is that of the finding's rank. The line is the first one that has the step and the value of the metric
    there as numbers; one that prints no step has none. Binary logs and tables of JSON documents have no lines: then a
    line of another log of the run counts, whose number agrees to the digits that it prints.
    """
    view = View(run)
    return tuple(_located(view, finding) for finding in findings)


def _located(view: View, finding: Finding) -> Finding:
    if finding.tag is None or "file" in finding.evidence:
        return finding
    found = [s for s in view.series if s.tag == finding.tag and finding.rank in (None, -1, s.rank)]
    if not found:
        return finding
    files = list(_files(view.run, found[0].source, found[0].rank))
    if not files:
        return finding
    value = _value(found[0], finding.step)
    file, line = files[0], None
    if value is not None:
        own = ((path, _line(Path(path), finding.step, value, 0.0)) for path in files)
        others = (reading.path for reading in view.run.readings if reading.path not in files)
        places = chain(own, ((path, _line(Path(path), finding.step, value, _ROUNDED)) for path in others))
        file, line = next(((path, at) for path, at in places if at is not None), (file, None))
    evidence = {**finding.evidence, "file": file, **({"line": line} if line is not None else {})}
    return replace(finding, evidence=evidence)


def _files(run: Run, source: str, rank: int) -> Iterator[str]:
    """The files of this source: those of the rank if any names it, else all of it, then all with numbers."""
    paths = [reading.path for reading in run.readings if reading.source == source]
    own = [path for path in paths if rank >= 0 and _rank(Path(path)) == rank]
    yield from own or paths


def _rank(path: Path) -> int:
    return max(torchrun_rank(path), rank_of_folder(path.parent), rank_in_name(path))


def _value(series: Series, step: int | None) -> float | None:
    """The value at the step; None where nothing was logged there."""
    values = series.value[series.step == step]
    return float(values[0]) if len(values) else None


def _line(file: Path, step: int | None, value: float, rounded: float) -> int | None:
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        with file.open("rb") as log:
            if b"\0" in log.read(4096):  # binary
                return None
            log.seek(0)
            return _matching(log, str(step).encode(), value, rounded)
    except OSError:
        return None


def _matching(lines: Iterable[bytes], step: bytes, value: float, rounded: float) -> int | None:
    """The number of the first line that has both numbers, the value up to a part `rounded` of it."""
    for number, raw in enumerate(lines, 1):
        if step not in raw:
            continue
        numbers = [written_number(word) for word in _NUMBER.findall(raw[:_LONGEST].decode("utf-8", "replace"))]
        if float(step) in numbers and any(n is not None and _same(n, value, rounded) for n in numbers):
            return number
    return None


def _same(printed: float, value: float, rounded: float) -> bool:
    if math.isfinite(value) and math.isfinite(printed):
        return abs(printed - value) <= rounded * abs(value)
    return printed == value or (math.isnan(printed) and math.isnan(value))
