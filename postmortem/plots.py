"""Curves of a run with its findings marked. Functions take matplotlib Axes and return them; pyplot is not used.

>>> import postmortem
>>> axes = plot_run(postmortem.load("sample_runs/nan-log-of-zero"))
>>> axes.figure.savefig("exp7.png")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from postmortem.core.report import RunReport
from postmortem.core.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.gridspec import GridSpecBase
    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.run import Run
    from postmortem.core.series import Series

_PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("loss", ("loss", "val_loss")),
    ("gradient norm", ("grad_norm",)),
    ("learning rate", ("lr",)),
    ("loss scale", ("loss_scale",)),
)
_COLORS = {"error": "#dd3333", "warning": "#d98200", "info": "#767676"}
_MOST_LINES = 6  # series in one panel
_MOST_MARKS = 6  # findings marked; more would hide the curves
_HUGE = 1e100  # larger values are drawn here, as the axes' arithmetic would overflow
_POINTS = 4000  # drawn per series: four for each pixel of a wide figure


def plot_run(run: Run | RunReport, ax: Axes | None = None, *, tags: Sequence[str] | None = None) -> Axes:
    """Loss, gradient norm, learning rate and loss scale over the step, one panel under the other, findings marked.

    The panels share their steps and the place of `ax`; the first one is `ax` itself and is returned, the others
    are in ``ax.figure.axes``. Findings (of a RunReport) are vertical lines labelled with their
    code; stretches without a finite value are shaded. With `tags`, these series are drawn instead, each in a
    panel of its own. KeyError if the run has no such tag; ValueError if the report does not hold the
    run's numbers (``Report`` of a large scan): plot ``postmortem.load(path)`` then.
    """
    report = run if isinstance(run, RunReport) else None
    numbers = run.run if isinstance(run, RunReport) else run
    if numbers is None:
        raise ValueError(
            f"the report does not hold the numbers of {run.name!r}; plot postmortem.load({str(run.path)!r})"
        )
    panels = _chosen(View(numbers), tags)
    findings = report.findings if report else ()
    top = _axes(ax)
    stack = _stack(top, len(panels))
    for i, ((name, series), panel) in enumerate(zip(panels, stack, strict=True)):
        for one in series:
            _draw(one, panel, _label(one), shade=0.2 / len(series))
        _mark(panel, findings, {s.tag for s in series}, labels=i == 0)
        panel.set_ylabel(name, fontsize="small")
        if len(series) > 1:
            panel.legend(fontsize="x-small", loc="best")
        last = i == len(panels) - 1
        if panel.get_yscale() == "linear":
            panel.ticklabel_format(axis="y", scilimits=(-3, 4), useOffset=False)
            _no_rounding(panel)
        panel.tick_params(labelbottom=last, labelsize="small")
        panel.set_xlabel("step" if last else "")
    if not panels:
        top.text(0.5, 0.5, "no numbers", ha="center", va="center", transform=top.transAxes)
    top.set_title(_plain(run.name + (f": {report.verdict}" if report else "")), fontsize="medium", loc="left")
    return top


def _draw(series: Series, ax: Axes, label: str, *, shade: float) -> None:
    """Draws the curve and, with opacity `shade`, a band over its non-finite stretches."""
    step, value = _thinned(series)
    finite = np.isfinite(value)
    logarithmic = _logarithmic(series.role, value[finite])
    value = np.where(finite, np.clip(value, 1 / _HUGE if logarithmic else -_HUGE, _HUGE), np.nan)
    marker = "." if finite.sum() <= 50 else ""
    (line,) = ax.plot(step, value, lw=1.2, label=_plain(label), marker=marker)
    if not finite.all():
        across = ax.get_xaxis_transform()
        first = np.flatnonzero(~finite & np.concatenate([[True], finite[:-1]]))
        ax.fill_between(step, 0, 1, where=~finite, transform=across, color=_COLORS["error"], alpha=shade, lw=0)
        ax.plot(step[first], np.full(len(first), 0.97), marker="x", color=line.get_color(), transform=across, ls="")
    if logarithmic:
        ax.set_yscale("log")


def _no_rounding(ax: Axes) -> None:
    """Widens the axis if all values are equal to the precision of float32, in which most loggers write."""
    low, high = ax.get_ylim()
    middle = (low + high) / 2
    if high - low < 1e-5 * abs(middle):
        ax.set_ylim(middle - 0.05 * abs(middle), middle + 0.05 * abs(middle))


def _axes(ax: Axes | None) -> Axes:
    """`ax`, or the only Axes of a new figure without a window."""
    return ax if ax is not None else Figure(figsize=(9, 5), layout="constrained").add_subplot()


def _stack(top: Axes, n: int) -> list[Axes]:
    """`top` and n - 1 panels below it, in the original place of `top` and with shared steps; `top` is the tallest."""
    if n < 2:
        return [top] * n
    figure, spec = top.get_figure(), top.get_subplotspec()
    assert figure is not None
    heights = [1.6] + [1.0] * (n - 1)
    if spec is not None:
        cells: GridSpecBase = spec.subgridspec(n, 1, height_ratios=heights, hspace=0.08)
    else:
        place = top.get_position()
        cells = GridSpec(
            n, 1, left=place.x0, right=place.x1, bottom=place.y0, top=place.y1, height_ratios=heights, hspace=0.08
        )
    top.set_subplotspec(cells[0])
    stack = [top, *(figure.add_subplot(cells[i], sharex=top) for i in range(1, n))]
    figure.align_ylabels(stack)
    return stack


def _chosen(view: View, tags: Sequence[str] | None) -> list[tuple[str, list[Series]]]:
    """The panels to draw, as (name, series); without a known role, the longest series of the run."""
    if tags is not None:
        there = {s.tag for s in view.series}
        missing = [t for t in tags if t not in there]
        if missing:
            raise KeyError(f"unknown tag {missing[0]!r}; available: {', '.join(sorted(there)) or 'none'}")
        return [(_plain(tag), [s for s in view.series if s.tag == tag][:_MOST_LINES]) for tag in tags]
    panels = [(name, view.of(*roles)[:_MOST_LINES]) for name, roles in _PANELS]
    shown = [(name, series) for name, series in panels if series]
    longest = sorted(view.series, key=len, reverse=True)[:1]
    return shown or [(_plain(s.tag), [s]) for s in longest]


def _thinned(series: Series) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """At most about `_POINTS` points with the same outline: the lowest, highest and first non-finite of each bucket."""
    n = len(series)
    if n <= _POINTS:
        return series.step, series.value
    size = -(-n // (_POINTS // 3))
    starts = np.arange(0, n, size)
    finite = np.isfinite(series.value)
    padded = np.full(len(starts) * size, np.nan)
    padded[:n] = np.where(finite, series.value, np.nan)
    table = padded.reshape(-1, size)
    lowest = np.where(np.isnan(table), np.inf, table).argmin(axis=1) + starts
    highest = np.where(np.isnan(table), -np.inf, table).argmax(axis=1) + starts
    bad = np.flatnonzero(~finite)
    first_bad = bad[np.unique(bad // size, return_index=True)[1]]
    rows = np.unique(np.concatenate([lowest, highest, first_bad, [0, n - 1]]))
    rows = rows[rows < n]
    return series.step[rows], series.value[rows]


def _logarithmic(role: str | None, finite: NDArray[np.float64]) -> bool:
    if not len(finite) or finite.min() <= 0 or role == "lr":
        return False
    factor = 10 if role in ("grad_norm", "layer_grad_norm", "loss_scale") else 100
    return bool(finite.max() / factor > finite.min())


def _mark(ax: Axes, findings: Sequence[Finding], tags: set[str], *, labels: bool) -> None:
    """Vertical lines at the steps of findings: all on the first panel, on the others those of its own tags."""
    placed: dict[int, Finding] = {}
    for finding in findings:
        if finding.step is not None and (labels or finding.tag in tags):
            placed.setdefault(finding.step, finding)
    roots = sorted(placed.values(), key=lambda f: (f.because_of is not None, f.severity != "error", f.step))[
        :_MOST_MARKS
    ]
    left, right = ax.get_xlim()
    labelled: list[float] = []
    for finding in roots:
        step, color = float(finding.step or 0), _COLORS[finding.severity]
        ax.axvline(step, color=color, lw=1, ls="--", alpha=0.9)
        if labels and all(abs(step - other) > 0.025 * (right - left) for other in labelled):
            labelled.append(step)
            style: dict[str, Any] = {"rotation": 90, "fontsize": "x-small", "color": color, "va": "top", "ha": "right"}
            ax.text(step, 0.98, finding.code, transform=ax.get_xaxis_transform(), **style)


def _label(series: Series) -> str:
    return series.tag if series.rank < 0 else f"{series.tag} (rank {series.rank})"


def _plain(text: str) -> str:
    """Text that matplotlib shows unchanged: no math mode, no control characters, at most 120 characters."""
    shown = "".join(c if c.isprintable() else "�" for c in text[:120]).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a label with a leading underscore is hidden
