"""Curves of a run with its findings marked. Functions take matplotlib Axes and return them; pyplot is not loaded.

Where the program has loaded pyplot, a new figure is the current one of pyplot, as ``plt.savefig`` expects.

>>> import postmortem
>>> axes = plot_run(postmortem.load("sample_runs/nan-log-of-zero"))
>>> axes.figure.savefig("exp7.png")  # doctest: +SKIP
"""

from __future__ import annotations

import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from postmortem.core.report import Report, RunReport
from postmortem.core.view import View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
_NEAR = 50  # points on each side of a step that is looked at
_SIZE = (9, 5)  # inches
_POINTS = 4000  # drawn per series: four for each pixel of a wide figure
_UNLIKE = 10  # times as many steps of one run as of another, from which a linear axis would hide the shorter one


class _Shown(Axes):
    """Axes of a figure without a window; a notebook shows the figure."""

    def _repr_png_(self) -> bytes:
        figure, png = self.get_figure(), BytesIO()
        assert isinstance(figure, Figure)
        figure.savefig(png, format="png")
        return png.getvalue()


def plot_run(
    run: Run | RunReport, ax: Axes | None = None, *, tags: Sequence[str] | None = None, around: int | None = None
) -> Axes:
    """Loss, gradient norm, learning rate and loss scale over the step, one panel under the other, findings marked.

    The panels share their steps and the place of `ax`; the first one is `ax` itself and is returned, the others
    are in ``ax.figure.axes``. Findings (of a RunReport) are vertical lines labelled with their
    code; stretches without a finite value are shaded. With `tags`, these series are drawn instead, each in a
    panel of its own; with `around`, a step, only the points near it. KeyError if the run has no such tag; ValueError
    if the report does not hold the run's numbers (``Report`` of a large scan): plot ``postmortem.load(path)`` then.
    """
    report = run if isinstance(run, RunReport) else None
    panels = _chosen(View(_numbers(run)), tags)
    drawn = [(name, [(one.label, _near(one, around)) for one in series]) for name, series in panels]
    unit = "epoch" if _numbers(run).step_axis == "epoch" else "step"
    top = _panels(drawn, ax, report.findings if report else (), unit=unit)
    top.set_title(_plain(run.name + (f": {report.verdict}" if report else "")), fontsize="medium", loc="left")
    return top


def plot_report(
    report: Report, ax: Axes | None = None, *, tags: Sequence[str] | None = None, around: int | None = None
) -> Axes:
    """The runs of a report in the panels of `plot_run`, the main series of each, labelled with the run's name.

    The six worst runs that hold their numbers are drawn, over a logarithmic step where their lengths are very
    different. `tags` and `around` are as in `plot_run`; a run without a tag is not in its panel. KeyError if no run has
    one of the tags; ValueError if no run holds its numbers.
    """
    runs = [run for run in report.runs if run.run is not None]
    if not runs:
        raise ValueError("the report does not hold the numbers of its runs; scan with keep=True")
    panels: dict[str, list[tuple[str, Series]]] = {name: [] for name in tags or [name for name, _ in _PANELS]}
    for run in runs[:_MOST_LINES]:
        view = View(_numbers(run))
        for name in panels:
            chosen = [s for s in view.series if s.tag == name] if tags else view.of(*dict(_PANELS)[name][:1])
            panels[name] += [(run.name, _near(one, around)) for one in chosen[:1]]
    for tag in tags or ():
        if not panels[tag]:
            raise KeyError(f"unknown tag {tag!r} in all runs of the report")
    colors = {run.name: f"C{i}" for i, run in enumerate(runs)}
    unit = "epoch" if all(_numbers(run).step_axis == "epoch" for run in runs[:_MOST_LINES]) else "step"
    shown_lines = [(_plain(name), lines) for name, lines in panels.items() if lines]
    top = _panels(shown_lines, ax, (), colors, unit)
    if around is None:
        _spread(top, [one for _, lines in shown_lines for _, one in lines])
    others = len(report.runs) - len(runs[:_MOST_LINES])
    shown = f"{len(report.runs)} runs" + (f", {others} not drawn" if others else "")
    top.set_title(shown, fontsize="medium", loc="left")
    return top


def _numbers(run: Run | RunReport) -> Run:
    if not isinstance(run, RunReport):
        return run
    if run.run is None:
        raise ValueError(
            f"the report does not hold the numbers of {run.name!r}; plot postmortem.load({str(run.path)!r})"
        )
    return run.run


def _near(series: Series, step: int | None) -> Series:
    """The points around `step`; all if it is None."""
    if step is None:
        return series
    at = int(np.searchsorted(series.step, step))
    return series.take(slice(max(at - _NEAR, 0), at + _NEAR))


def _panels(
    panels: Sequence[tuple[str, Sequence[tuple[str, Series]]]],
    ax: Axes | None,
    findings: Sequence[Finding],
    colors: Mapping[str, str] | None = None,
    unit: str = "step",
) -> Axes:
    """Draws each panel, (name, [(label, series)]), under the one before; returns the first.

    `colors` are by label; `unit` is what the steps count.
    """
    top = _axes(ax)
    stack = _stack(top, len(panels))
    for i, ((name, lines), panel) in enumerate(zip(panels, stack, strict=True)):
        for label, one in lines:
            _draw(one, panel, label, shade=0.2 / len(lines), color=(colors or {}).get(label))
        _scale(panel, [one for _, one in lines])
        _mark(panel, findings, {one.tag for _, one in lines}, labels=i == 0)
        panel.set_ylabel(name, fontsize="small")
        if len(lines) > 1:
            panel.legend(fontsize="x-small", loc="best")
        last = i == len(panels) - 1
        if panel.get_yscale() == "linear":
            panel.ticklabel_format(axis="y", scilimits=(-3, 4), useOffset=False)
            _no_rounding(panel)
        panel.tick_params(labelbottom=last, labelsize="small")
        panel.set_xlabel(unit if last else "")
    if not panels:
        top.text(0.5, 0.5, "no numbers", ha="center", va="center", transform=top.transAxes)
    return top


def _draw(series: Series, ax: Axes, label: str, *, shade: float, color: str | None = None) -> None:
    """Draws the curve and, with opacity `shade`, a band over its non-finite stretches."""
    shown = series.thinned(_POINTS)
    step, value = shown.step, shown.value
    finite = np.isfinite(value)
    value = np.where(finite, np.clip(value, -_HUGE, _HUGE), np.nan)
    value = np.where(np.abs(value) < 1 / _HUGE, np.sign(value) / _HUGE, value)  # NaN stays, 0 as well
    marker = "." if finite.sum() <= 50 else ""
    label = label if finite.any() else f"{label} (no finite value)"
    (line,) = ax.plot(step, value, lw=1.2, label=_plain(label), marker=marker, color=color)
    if not finite.all():
        across = ax.get_xaxis_transform()
        first = np.flatnonzero(~finite & np.concatenate([[True], finite[:-1]]))
        ax.fill_between(step, 0, 1, where=~finite, transform=across, color=_COLORS["error"], alpha=shade, lw=0)
        ax.plot(step[first], np.full(len(first), 0.97), marker="x", color=line.get_color(), transform=across, ls="")


def _scale(ax: Axes, drawn: Sequence[Series]) -> None:
    """A logarithmic axis where a curve needs one; linear around zero where another curve has values that are not
    positive, which a logarithm would leave out."""
    values = [one.value[np.isfinite(one.value)] for one in drawn]
    if not any(_logarithmic(one.role, value) for one, value in zip(drawn, values, strict=True)):
        return
    if all((value > 0).all() for value in values):
        ax.set_yscale("log")
    else:
        sizes = [float(np.median(np.abs(value[value != 0]))) for value in values if (value != 0).any()]
        ax.set_yscale("symlog", linthresh=min(max(min(sizes), 1 / _HUGE), _HUGE))


def _spread(top: Axes, drawn: Sequence[Series]) -> None:
    """A logarithmic step where one run has many times the steps of another, and would hide it at the left edge."""
    lengths = [int(one.step.max()) for one in drawn if len(one) and one.step.max() > 0]
    if lengths and max(lengths) > _UNLIKE * min(lengths):
        top.set_xscale("symlog", linthresh=1.0)
        top.set_xlim(left=min(0, *(int(one.step.min()) for one in drawn if len(one))))


def _no_rounding(ax: Axes) -> None:
    """Widens the axis if all values are equal to the precision of float32, in which most loggers write."""
    low, high = ax.get_ylim()
    middle = (low + high) / 2
    if high - low < 1e-5 * abs(middle):
        ax.set_ylim(middle - 0.05 * abs(middle), middle + 0.05 * abs(middle))


def _axes(ax: Axes | None) -> Axes:
    """`ax`, or the only Axes of a new figure: a figure of pyplot if it is loaded, else one without a window."""
    if ax is not None:
        return ax
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        own: Axes = pyplot.figure(figsize=_SIZE, layout="constrained").add_subplot()
        return own  # a notebook shows the figures of pyplot by itself
    return Figure(figsize=_SIZE, layout="constrained").add_subplot(axes_class=_Shown)


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


def _logarithmic(role: str | None, finite: NDArray[np.float64]) -> bool:
    if not len(finite) or finite.min() <= 0 or role == "lr":
        return False
    factor = 10 if role in ("grad_norm", "layer_grad_norm", "loss_scale") else 100
    return bool(finite.max() / factor > finite.min())


def _mark(ax: Axes, findings: Sequence[Finding], tags: set[str], *, labels: bool) -> None:
    """Vertical lines at the steps of findings: all on the first panel, on the others those of its own tags."""
    placed: dict[int, Finding] = {}
    left, right = ax.get_xlim()
    for finding in findings:
        if finding.step is not None and left <= finding.step <= right and (labels or finding.tag in tags):
            placed.setdefault(finding.step, finding)
    roots = sorted(placed.values(), key=lambda f: (f.because_of is not None, f.severity != "error", f.step))[
        :_MOST_MARKS
    ]
    labelled: list[float] = []
    for finding in roots:
        step, color = float(finding.step or 0), _COLORS[finding.severity]
        ax.axvline(step, color=color, lw=1, ls="--", alpha=0.9)
        if labels and all(abs(step - other) > 0.025 * (right - left) for other in labelled):
            labelled.append(step)
            style: dict[str, Any] = {"rotation": 90, "fontsize": "x-small", "color": color, "va": "top", "ha": "right"}
            ax.text(step, 0.98, finding.code, transform=ax.get_xaxis_transform(), **style)


def _plain(text: str) -> str:
    """Text that matplotlib shows unchanged: no math mode, no control characters, at most 120 characters."""
    shown = "".join(c if c.isprintable() else "�" for c in text[:120]).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a label with a leading underscore is hidden
