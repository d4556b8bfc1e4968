"""Installs the renderings of results: text for `print`, HTML and curves for notebooks.

The package imports this module first of all, so it imports what renders only when something is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.core.display import HOOKS

if TYPE_CHECKING:
    from postmortem.checkpoints.health import Health
    from postmortem.core.comparison import Comparison
    from postmortem.core.culprit import Culprit, ReplayResult
    from postmortem.core.model import Finding
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run

    Printed = Report | RunReport | Run | Comparison | ReplayResult | Culprit | Health


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
    """An HTML fragment: a page for a report or a finding, for the others their text. Nothing is judged."""
    from postmortem.core.model import Finding
    from postmortem.core.report import Report, RunReport
    from postmortem.reporters.html import fragment

    return fragment(thing if isinstance(thing, (Report, RunReport, Finding)) else text(thing))


def plot(thing: Run | RunReport, ax: Any = None) -> Any:
    """The run's loss, gradient norm and learning rate; returns the Axes."""
    from postmortem.plots import plot_run

    return plot_run(thing, ax)


HOOKS.update(text=text, html=html, plot=plot)
