"""The answer of `postmortem check` as text: faults first, then the checklist."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame, CheckResult

_MARKS = {"ok": "ok", "not ok": "NOT OK", "not checked": "not checked"}


def check_lines(result: CheckResult, width: int = 100) -> list[str]:
    """All lines."""
    return list(_lines(result, max(40, min(width, 120))))


def _lines(result: CheckResult, width: int) -> Iterator[str]:
    steps = f"{result.steps} optimizer step{'' if result.steps == 1 else 's'}"
    found = len(result.faults)
    what = "no fault found" if not found else f"{found} fault{'' if found == 1 else 's'} found"
    yield f"{what} in {steps}" if result.steps else "no step of an optimizer was seen"
    for fault in result.faults:
        yield ""
        yield from _fault(fault, width)
    yield ""
    yield "Checklist:"
    longest = max((len(check.name) for check in result.checks), default=0)
    for check in sorted(result.checks, key=lambda c: list(_MARKS)[::-1].index(c.status)):
        start = f"  {_MARKS[check.status]:<12} {check.name:<{longest}}  "
        yield from textwrap.wrap(check.detail, width, initial_indent=start, subsequent_indent=" " * 15) or [start]
    for note in result.notes:
        yield f"note: {note}"


def _fault(fault: Blame, width: int) -> Iterator[str]:
    where = f"{_relative(fault.file)}:{fault.line}" if fault.file else "no line of the program is known"
    yield f"{fault.name}  {where}"
    for text in (fault.evidence, f"to confirm: {fault.confirm}" if fault.confirm else ""):
        yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")
    for attempt in fault.tried:
        outcome = "cured" if attempt.get("cured") else "not cured"
        yield f"  tried: {attempt.get('what', '')}: {outcome}"
    yield f"  `postmortem explain {fault.name}` says more"


def _relative(file: str) -> str:
    """As seen from here, if it is below the working directory."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith("..") else relative
