"""Installs the renderings of core types: text for `print`, HTML and curves for notebooks.

The package imports this module first of all, so it imports what renders only when something is shown.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.core.display import HOOKS

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run

_judged: weakref.WeakKeyDictionary[Run, RunReport] = weakref.WeakKeyDictionary()
"""Reports of runs that were displayed, without the run itself, so that it is not kept alive."""


def text(report: Report | RunReport) -> str:
    """The report as the command line prints it, without colour."""
    from postmortem.core.report import Report
    from postmortem.reporters import REPORTERS, RenderOptions

    whole = report if isinstance(report, Report) else Report(runs=(report,), version=__version__)
    return REPORTERS["text"](whole, RenderOptions()).rstrip("\n")


def html(thing: Report | RunReport | Run | Finding) -> str:
    """An HTML fragment. A run is judged the first time it is displayed; its report is cached."""
    from postmortem.core.run import Run
    from postmortem.reporters.html import fragment

    return fragment(_report_of(thing) if isinstance(thing, Run) else thing)


def _report_of(run: Run) -> RunReport:
    if run not in _judged:
        from dataclasses import replace

        from postmortem.api import judge

        _judged[run] = replace(judge(run), run=None)
    return _judged[run]


def plot(thing: Run | RunReport, ax: Any = None) -> Any:
    """The run's loss, gradient norm and learning rate; returns the Axes."""
    from postmortem.plots import plot_run

    return plot_run(thing, ax)


HOOKS.update(text=text, html=html, plot=plot)
