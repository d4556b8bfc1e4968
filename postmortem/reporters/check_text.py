"""The text output of `postmortem check`: faults first, then what to type next, then the checklist."""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

from postmortem.core.blame import ENOUGH
from postmortem.reporters.shared.words import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame, Check, CheckResult, NonfiniteLoss

_MARKS = {"not ok": "NOT OK", "ok": "ok", "not checked": "not checked"}


def check_lines(result: CheckResult, width: int = 100, *, verbose: bool = False, ran: bool = False) -> list[str]:
    """All lines. verbose: with every check. ran: the program ran for real, under `postmortem run`, which has its own
    answer to a loss that is not finite."""
    return list(_lines(result, max(40, min(width, 120)), verbose=verbose, ran=ran))


def _lines(result: CheckResult, width: int, *, verbose: bool, ran: bool) -> Iterator[str]:
    found, steps = len(result.faults), count(result.steps, "optimizer step")
    if result.failed:
        yield from textwrap.wrap(f"{result.failed}, after {steps}", width)
    if result.nonfinite is not None:
        yield from textwrap.wrap(_nonfinite(result.nonfinite), width)
    failed = result.failed or result.nonfinite is not None
    what = count(found, "fault") if found else "no other fault" if failed else "no fault"
    if result.too_few and not found:
        verb = "was" if result.steps == 1 else "were"
        yield from textwrap.wrap(f"not judged: only {steps} {verb} seen, and at least {ENOUGH} are needed", width)
    else:
        yield f"{what} found in {steps}" if result.steps else "no step of an optimizer was seen"
    for fault in result.faults:
        yield ""
        yield from _fault(fault, width)
    if not ran and result.command and result.steps and not found and not (result.too_few and not result.nonfinite):
        yield ""
        yield from _next(result)
    yield ""
    yield from _checklist(result.checks, width) if verbose else _brief(result, width)
    for note in result.notes:
        yield f"note: {note}"


def _nonfinite(loss: NonfiniteLoss) -> str:
    kinds = {"NaN": loss.nan, "infinite": loss.passes - loss.nan}
    order = sorted(kinds, key=lambda kind: (kind == "NaN") != math.isnan(loss.value))  # what was seen first
    how_often = " and ".join(f"{kind} in {kinds[kind]:,}" for kind in order if kinds[kind])
    where = f", at {_relative(loss.file)}:{loss.line}" if loss.file else ""
    first = f"first seen in optimizer step {loss.step} (counted from 0; not every step is checked){where}"
    return f"the loss is {how_often} of {count(loss.of, 'backward pass')} that were checked; {first}"


def _next(result: CheckResult) -> Iterator[str]:
    does = "names the operation that produced it" if result.nonfinite is not None else "watches the whole training"
    yield f"next: `postmortem run` {does}:"
    yield f"  $ postmortem run -- {shlex.join(result.command)}"


def _brief(result: CheckResult, width: int) -> Iterator[str]:
    """What is not ok and no fault or worth knowing, and how many checks were made."""
    faults = {fault.name for fault in result.faults}
    for check in result.checks:
        if (check.status == "not ok" or check.told) and check.name not in faults:
            yield from textwrap.wrap(
                f"{_MARKS[check.status]} {check.name}: {check.detail}", width, subsequent_indent="  "
            )
    if result.too_few:
        missing = sum(check.status == "not checked" for check in result.checks)
        yield f"{count(missing, 'check')} not made: too few optimizer steps were seen"
    else:
        yield from _counted(result.checks, width)


def _counted(checks: tuple[Check, ...], width: int) -> Iterator[str]:
    """How many checks found nothing, and the names of those that were not made."""
    passed = sum(check.status == "ok" for check in checks)
    names = [check.name for check in checks if check.status == "not checked" and not check.absent]
    absent = sum(check.absent for check in checks)
    none = f"; for {absent} more the program has nothing of the kind" if absent else ""
    yield f"{count(passed, 'check')} found nothing wrong{none}"
    if names:
        text = f"{count(len(names), 'check')} not made (--verbose says why): {', '.join(names)}"
        yield from textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _checklist(checks: tuple[Check, ...], width: int) -> Iterator[str]:
    yield "Checklist:"
    longest = max((len(check.name) for check in checks), default=0)
    for check in sorted(checks, key=lambda c: list(_MARKS).index(c.status)):
        start = f"  {_MARKS[check.status]:<12} {check.name:<{longest}}  "
        yield from textwrap.wrap(check.detail, width, initial_indent=start, subsequent_indent=" " * 15) or [start]


def _fault(fault: Blame, width: int) -> Iterator[str]:
    where = f"{_relative(fault.file)}:{fault.line}" if fault.file else "no line of the program is known"
    yield f"{fault.name}  {where}"
    for text in (fault.evidence, f"to confirm: {fault.confirm}" if fault.confirm else ""):
        yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")
    for attempt in fault.tried:
        yield from textwrap.wrap(_attempt(attempt), width, initial_indent="  ", subsequent_indent="  ")
    yield f"  `postmortem explain {fault.name}` explains it"


def _attempt(attempt: dict[str, Any]) -> str:
    """What was tried, the losses with and without it, and what that shows."""
    what, why = attempt["what"], attempt.get("why")
    if "observed" in attempt:
        shows = "the fault is gone" if attempt["cured"] else f"the fault is still there: {attempt['observed']}"
        return f"tried: {what}: {shows}"
    if "loss" not in attempt:
        return f"could not be tried: {what}: {why}"
    (first, last), (before, without) = attempt["loss"], attempt["loss_without"]
    shows = why or ("the loss ends clearly lower" if attempt["cured"] else "no clear gain")
    losses = f"over {count(attempt['steps'], 'step')} the loss went from {first:.3g} to {last:.3g}"
    return f"tried: {what}: {losses}, without this from {before:.3g} to {without:.3g}: {shows}"


def _relative(file: str) -> str:
    """As seen from here, if it is below the working directory."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith("..") else relative
