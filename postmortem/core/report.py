"""The result of a scan: the report of one run and of all runs. Every output format renders one Report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.core.display import Displayed, plot
from postmortem.core.model import VERDICTS, Checkpoint, Diagnosis, Ended, Event, Finding, Problem, Source, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.culprit import Culprit
    from postmortem.core.run import Run


RESUMED = "resumed without its optimizer: "
"""How a note begins that is shown also where notes are not asked for."""
LEFT_OUT = "left out by select or ignore"
"""Why a check was not done that the configuration does not want."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """One series near the root finding: its values before and at the step, and its curve for a sparkline."""

    tag: str
    role: str
    before_step: int | None
    before: float | None
    at_step: int | None
    at: float | None
    curve: tuple[float, ...] = ()
    unit: str = "step"
    """What its steps count: "step" or "epoch"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One series for a chart: thinned over the whole run, with every point near the root finding."""

    tag: str
    role: str
    rank: int
    step: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The lines of a text log around a message: `first` is the line number of the first, `at` that of the message."""

    file: str
    first: int
    at: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What an HTML page shows of a run in addition to its report; see `postmortem.judging.drawing`."""

    curves: tuple[Curve, ...] = ()
    restarts: tuple[int, ...] = ()
    """The steps at which the run went on after a restart."""
    places: dict[str, int] = field(default_factory=dict)
    """Where a finding is among the steps of the curves, by its id, if the log places it by an epoch."""
    excerpts: tuple[Excerpt, ...] = ()


@dataclass(slots=True, kw_only=True, repr=False)
class RunReport(Displayed):
    """The report on one run. `run` holds its numbers; None if they were dropped (in large scans)."""

    name: str
    path: str
    verdict: Verdict
    sources: tuple[Source, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    unit: str = "step"
    """What the steps count: "epoch" where the log prints no steps but epochs."""
    ended: Ended
    diagnosis: Diagnosis | None = None
    findings: tuple[Finding, ...] = ()
    events: tuple[Event, ...] = ()
    problems: tuple[Problem, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[tuple[str, str], ...] = ()
    around: tuple[Around, ...] = ()
    notes: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    culprit: Culprit | None = None
    """The result of a replay of the run; None if it was not replayed."""
    run: Run | None = None
    drawing: Drawing | None = None
    """Curves and log lines for the HTML page; None unless the scan was asked for them."""

    def __repr__(self) -> str:
        """One line; `print` shows the full report, and so does a notebook."""
        story = f", {self.diagnosis.name}" if self.diagnosis else ""
        found = "1 finding" if len(self.findings) == 1 else f"{len(self.findings)} findings"
        return f"<RunReport {self.name!r}: {self.verdict}{story}, {found}>"

    def plot(self, ax: Any = None, *, tags: Sequence[str] | None = None, around: int | None = None) -> Any:
        """Plots loss, gradient norm and learning rate, or the `tags`, with the findings marked; returns the Axes.

        `around` is a step: only the points near it are plotted. Without `ax`, the figure is a new one, which
        ``.figure.savefig(…)`` of the Axes saves, or ``plt.savefig(…)`` if matplotlib.pyplot was imported before.
        """
        return plot(self, ax, tags=tags, around=around)


@dataclass(slots=True, kw_only=True, repr=False)
class Report(Displayed):
    """The result of a scan, a collection of `RunReport`. Every output format is a rendering of one Report."""

    version: str
    options: dict[str, Any] = field(default_factory=dict)
    runs: tuple[RunReport, ...]
    problems: tuple[Problem, ...] = ()
    """Paths that belong to no run: unreadable, empty or of no known kind."""

    def __repr__(self) -> str:
        verdicts = [run.verdict for run in self.runs]
        counted = ", ".join(f"{verdicts.count(v)} {v}" for v in VERDICTS if v in verdicts)
        return f"<Report of {len(self.runs)} runs{': ' if counted else ''}{counted}>"

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[RunReport]:
        return iter(self.runs)

    def __contains__(self, run: object) -> bool:
        """Whether it has this run, or a run of this name or at this path."""
        return any(run is one or run in (one.name, one.path) for one in self.runs)

    def __getitem__(self, key: str | int) -> RunReport:
        """The run of this name, of this path, or at this index.

        KeyError lists the names; IndexError gives the number of runs.
        """
        if isinstance(key, int):
            if not -len(self.runs) <= key < len(self.runs):
                raise IndexError(f"no run at index {key}; the report has {len(self.runs)} runs")
            return self.runs[key]
        for known in ("name", "path"):
            for run in self.runs:
                if getattr(run, known) == key:
                    return run
        raise KeyError(f"unknown run {key!r}; available: {', '.join(run.name for run in self.runs) or 'none'}")

    def plot(self, ax: Any = None, *, tags: Sequence[str] | None = None, around: int | None = None) -> Any:
        """Plots the curves of the worst runs in shared panels, one colour per run; returns the matplotlib Axes.

        The options are those of `RunReport.plot`. Raises ValueError if no run of the report holds its numbers.
        """
        return plot(self, ax, tags=tags, around=around)

    def findings_frame(self) -> Any:
        """All findings as a pandas DataFrame, one row per finding, with the name and verdict of its run."""
        import pandas as pd

        columns = [
            "id",
            "code",
            "name",
            "severity",
            "tag",
            "rank",
            "step",
            "end_step",
            "message",
            "because_of",
            "evidence",
        ]
        rows = [[r.name, r.verdict, *(getattr(f, c) for c in columns)] for r in self.runs for f in r.findings]
        frame = pd.DataFrame(rows, columns=["run", "verdict", *columns])
        return frame.astype({"rank": "Int16", "step": "Int64", "end_step": "Int64"})


def tell_apart(reports: Sequence[RunReport]) -> None:
    """Makes the names of runs unique: adds the folder or file, or the whole path, to names that several runs share.

    W&B and MLflow allow any number of runs with the same name.
    """
    same_name: dict[str, list[RunReport]] = defaultdict(list)
    for report in reports:
        same_name[report.name].append(report)
    for name, runs in same_name.items():
        if len(runs) == 1:
            continue
        places = [Path(report.path).resolve().name for report in runs]
        if len(set(places)) < len(runs):
            places = [report.path for report in runs]
        for report, place in zip(runs, places, strict=True):
            report.name = f"{name} ({place})"
            if report.run is not None:
                report.run = replace(report.run, name=report.name)
