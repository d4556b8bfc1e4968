"""Installs the renderings of results: text for `print`, HTML and curves for notebooks.

The package imports this module first of all, so it imports what renders only when something is shown.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.core.display import HOOKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.checkpoints.health import Health
    from postmortem.core.comparison import Comparison
    from postmortem.core.culprit import Culprit, ReplayResult
    from postmortem.core.model import Finding
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run
    from postmortem.core.series import Series

    Printed = Report | RunReport | Run | Comparison | ReplayResult | Culprit | Health

_MOST_DRAWN = 12
"""Runs of a report whose curves a notebook shows."""


def text(thing: Printed) -> str:
    """What the command line prints, without colour."""
    from postmortem.core.comparison import Comparison
    from postmortem.core.culprit import Culprit, ReplayResult
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run

    if isinstance(thing, (Report, RunReport)):
        from postmortem.reporters import REPORTERS, RenderOptions

        whole = thing if isinstance(thing, Report) else Report(runs=(thing,), version=__version__)
        return REPORTERS["text"](whole, RenderOptions()).rstrip("\n")
    if isinstance(thing, Run):
        from postmortem.reporters.run_text import run_text

        return run_text(thing)
    if isinstance(thing, Comparison):
        from postmortem.reporters.comparison_text import comparison_text

        return comparison_text(thing)
    if isinstance(thing, (Culprit, ReplayResult)):
        from postmortem.core.printable import printable
        from postmortem.reporters.replay_text import culprit_text, replay_lines

        return printable("\n".join(culprit_text(thing) if isinstance(thing, Culprit) else replay_lines(thing)))
    from postmortem.reporters.checkpoints_text import health_lines  # the class itself needs torch

    return "\n".join(health_lines(thing, Path(thing.path)))


def html(thing: Printed | Finding) -> str:
    """An HTML fragment: a page for a report or a finding, for the others their text; of runs also their curves.

    Nothing is judged.
    """
    from postmortem.core.model import Finding
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run
    from postmortem.reporters.html import fragment

    if isinstance(thing, Report):
        return fragment(replace(thing, runs=_drawn(thing.runs)))
    if isinstance(thing, RunReport):
        return fragment(_drawn([thing])[0])
    if isinstance(thing, Finding):
        return fragment(thing)
    return fragment(text(thing), _curves(thing) if isinstance(thing, Run) else "")


def _drawn(runs: Sequence[RunReport]) -> tuple[RunReport, ...]:
    """The runs with the curves of the HTML page: of the first ones that hold their numbers."""
    from postmortem.judging.drawing import drawing

    drawn = [
        replace(run, drawing=drawing(run.run, run)) if run.run is not None and run.drawing is None else run
        for run in runs[:_MOST_DRAWN]
    ]
    return (*drawn, *runs[_MOST_DRAWN:])


def _curves(run: Run) -> str:
    from postmortem.core.report import RunReport
    from postmortem.reporters.shared.panels import panels

    bare = RunReport(name=run.name, path=str(run.path), verdict="not-judged", ended=run.ended, run=run)
    return panels(_drawn([bare])[0])


def plot(thing: Report | Run | RunReport, ax: Any = None, **options: Any) -> Any:
    """The curves of a run, or of the runs of a report; returns the Axes. Options: see `postmortem.plots`.

    MissingExtra without matplotlib.
    """
    from postmortem.core.errors import MissingExtra
    from postmortem.core.report import Report

    if find_spec("matplotlib") is None:
        raise MissingExtra("plot", "plot")
    from postmortem.plots import plot_report, plot_run

    return plot_report(thing, ax, **options) if isinstance(thing, Report) else plot_run(thing, ax, **options)


def series(run: Run) -> list[Series]:
    """The series of a run as detectors see them: without what a restart logged again, each number once."""
    from postmortem.core.view import View

    return View(run).series


HOOKS.update(text=text, html=html, plot=plot, series=series)
