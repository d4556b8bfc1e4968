"""Judges a run together with its saved weights: which of them are opened depends on what the log shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from postmortem.checkpoints.of_run import Inspected, inspect_named, inspect_newest, inspect_run, lacks_optimizer
from postmortem.core.registry import collected_faults
from postmortem.core.report import RESUMED
from postmortem.judging import Examination
from postmortem.judging.without_files import without_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.detectors import Detector


def judge_inspected(run: Run, detectors: Sequence[Detector], look_into_checkpoints: bool) -> RunReport:
    """Opens the newest checkpoint; more of failed runs or on request, and those that would be reported as good."""
    with collected_faults([*run.problems]) as faults:
        report = _judged(run, detectors, look_into_checkpoints)
    report.problems = (*report.problems, *faults[len(run.problems) :])
    return report if any(source.files for source in run.sources) else without_commands(report)


def _judged(run: Run, detectors: Sequence[Detector], look_into_checkpoints: bool) -> RunReport:
    examined = Examination(run, detectors)
    inspected = Inspected(examined.checkpoints)
    if run.checkpoints and (examined.failed or look_into_checkpoints):
        inspected = _look_back(examined, inspected, every=look_into_checkpoints)
    elif run.checkpoints and any(getattr(d, "reads_checkpoints", False) for d in detectors):
        inspected = inspect_newest(inspected.checkpoints, running=run.ended == "running")
        if any(c.finite is False for c in inspected.checkpoints):
            inspected = _look_back(examined, inspected)  # to the first that is good
    report = examined.report(inspected)
    while (more := inspect_named(inspected, _named_as_good(report))) is not None:
        if not examined.failed and any(c.finite is False for c in more.checkpoints):
            more = _look_back(examined, more)  # it failed, as its weights show
        inspected, report = more, examined.report(more)
    report.notes = (*report.notes, *_resumed_without_optimizer(run))
    return report


def _resumed_without_optimizer(run: Run) -> Iterator[str]:
    """The checkpoint that the log says it was resumed from, if that file holds no optimizer."""
    for event in run.event_list:
        named = [c.path for c in run.checkpoints if os.path.basename(c.path) in event.message.split()]
        if event.kind == "resumed" and len(named) == 1 and lacks_optimizer(named[0]):
            where = f"{os.path.basename(event.file)}, line {event.line}"
            yield (
                f"{RESUMED}{where}, names {named[0]}, which holds weights and no optimizer: its moments or momentum, "
                "and the learning rate where none is logged, may not be those from before"
            )
            return


def _look_back(examined: Examination, inspected: Inspected, *, every: bool = False) -> Inspected:
    return inspect_run(inspected.checkpoints, examined.onset, examined.view.last_step, every=every)


def _named_as_good(report: RunReport) -> str | None:
    return report.diagnosis.last_good_checkpoint if report.diagnosis is not None else None
