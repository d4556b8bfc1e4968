"""Curves: what is drawn, where it is marked, and that the caller's figure stays the caller's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from postmortem.core.errors import MissingExtra
from postmortem.core.model import Finding
from postmortem.core.points import PointsBuilder
from postmortem.core.report import Report, RunReport
from postmortem.core.run import Run, Stream, segments
from postmortem.plots import plot_report, plot_run


@pytest.fixture(autouse=True)
def without_pyplot(monkeypatch):
    """Another test of this process may have loaded pyplot, which would keep the figures."""
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)


def make_run(n: int = 1000, **series: np.ndarray) -> Run:
    """A run of n steps: its loss is NaN from 0.8 n on, its gradient norm spikes."""
    step = np.arange(n)
    loss = np.where(step < 0.8 * n, 2.0 + 0.01 * np.sin(step), np.nan)
    numbers = series or {"train/loss": loss, "grad_norm": 1 + (step == n // 2) * 1e4, "lr": np.full(n, 3e-4)}
    points = PointsBuilder()
    for tag, value in numbers.items():
        points.extend(tag, step[: len(value)], value)
    built = points.build()
    return Run(
        name="exp7",
        path=Path("runs/exp7"),
        streams=[Stream("csv", "x", built, *segments(built))],
        event_list=[],
        problems=[],
        sources=[],
    )


def report_of(run: Run | None) -> RunReport:
    finding = Finding(
        id="f1", code="NAN001", name="nan-onset", severity="error", tag="train/loss", step=800, message="nan"
    )
    return RunReport(name="exp7", path="runs/exp7", verdict="failed", ended="crashed", findings=(finding,), run=run)


def drawn(axes) -> None:
    """Renders the figure: errors of matplotlib come only then."""
    axes.figure.canvas.draw()


def test_a_run_has_a_panel_per_quantity():
    """Loss, gradient norm (logarithmic) and learning rate, sharing their steps."""
    ax = plot_run(make_run())
    drawn(ax)
    panels = ax.figure.axes
    assert [p.get_ylabel() for p in panels] == ["loss", "gradient norm", "learning rate"]
    assert panels[0] is ax
    assert panels[1].get_yscale() == "log"
    assert panels[0].get_xlim() == panels[2].get_xlim()


def test_findings_are_marked_at_their_step():
    """A vertical line at the step of the finding, labelled with its code."""
    ax = plot_run(report_of(make_run()))
    drawn(ax)
    assert [t.get_text() for t in ax.texts] == ["NAN001"]
    assert any(list(line.get_xdata()) == [800.0, 800.0] for line in ax.lines)


def test_labels_of_neighbouring_findings_do_not_cover_each_other():
    """Both are marked, the first of them is labelled."""
    report = report_of(make_run())
    report.findings += (
        Finding(
            id="f2",
            code="CKP001",
            name="checkpoint-nonfinite",
            severity="error",
            step=803,
            message="x",
            because_of="f1",
        ),
    )
    ax = plot_run(report)
    drawn(ax)
    assert [t.get_text() for t in ax.texts] == ["NAN001"]
    assert sum(line.get_linestyle() == "--" for line in ax.lines) == 2


def test_stretches_that_are_not_finite_are_shaded():
    """From the first NaN to the last, and no curve is drawn there."""
    ax = plot_run(make_run(), tags=["train/loss"])
    (band,) = ax.collections
    corners = band.get_paths()[0].get_extents()
    assert (corners.x0, corners.x1) == (800, 999)
    assert np.isnan(ax.lines[0].get_ydata()[800:]).all()


def test_the_axes_given_are_used_and_their_neighbours_left_alone():
    """Panels share the place of the axes in the caller's grid; nothing global is touched."""
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    assert plot_run(make_run(), left) is left
    figure.canvas.draw()
    assert len(figure.axes) == 4
    assert all(a.get_position().x1 <= right.get_position().x0 for a in figure.axes if a is not right)


def test_rounding_does_not_fill_a_panel():
    """A learning rate that is 0.001 in one file and its float32 in the next is a flat line; a real change is not."""
    rate = np.where(np.arange(100) < 50, 1e-3, float(np.float32(1e-3)))
    low, high = plot_run(make_run(100, lr=rate)).get_ylim()
    assert high - low > 0.01 * 1e-3
    low, high = plot_run(make_run(100, lr=np.where(np.arange(100) < 50, 1e-3, 1.01e-3))).get_ylim()
    assert high - low < 0.02 * 1e-3


def test_axes_outside_a_grid_work_too():
    """Axes placed by hand are split in their own place."""
    figure = Figure()
    ax = figure.add_axes((0.1, 0.2, 0.5, 0.6))
    plot_run(make_run(), ax)
    figure.canvas.draw()
    boxes = [a.get_position() for a in figure.axes]
    assert min(b.y0 for b in boxes) == pytest.approx(0.2)
    assert max(b.y1 for b in boxes) == pytest.approx(0.8)


def test_tags_choose_what_is_drawn():
    """The tags asked for, in that order; an unknown one is named together with those there are."""
    ax = plot_run(make_run(), tags=["lr", "train/loss"])
    assert [p.get_ylabel() for p in ax.figure.axes] == ["lr", "train/loss"]
    with pytest.raises(KeyError, match="unknown tag 'los'; available: grad_norm, lr, train/loss"):
        plot_run(make_run(), tags=["los"])


def test_around_a_step_only_its_neighbours_are_drawn():
    """Fifty points on each side; a finding elsewhere is not marked and moves no axis."""
    ax = plot_run(report_of(make_run()), tags=["lr"], around=300)
    drawn(ax)
    assert (ax.lines[0].get_xdata().min(), ax.lines[0].get_xdata().max()) == (250, 349)
    assert not ax.texts
    assert ax.get_xlim()[1] < 400


def test_runs_of_a_report_share_panels_in_a_colour_each():
    """The main series of each run, under its name, with one colour in all panels; runs without it are left out."""
    runs = []
    for k in range(3):
        run = report_of(make_run(100, **{"loss": np.ones(100) + k, **({"lr": np.ones(100)} if k else {})}))
        run.name = f"run-{k}"
        runs.append(run)
    report = Report(runs=(*runs, report_of(None)), version="1")
    ax = plot_report(report)
    drawn(ax)
    loss, rate = ax.figure.axes
    assert [line.get_label() for line in loss.lines] == ["run-0", "run-1", "run-2"]
    assert {line.get_label(): line.get_color() for line in rate.lines} == {"run-1": "C1", "run-2": "C2"}
    assert ax.get_title(loc="left") == "4 runs, 1 not drawn"
    with pytest.raises(KeyError, match="unknown tag 'x' in all runs"):
        plot_report(report, tags=["x"])
    with pytest.raises(ValueError, match="keep=True"):
        plot_report(Report(runs=(report_of(None),), version="1"))


def test_values_that_are_not_positive_are_drawn_beside_a_curve_that_needs_a_logarithm():
    """Linear around zero: a logarithm would leave -2 out, and only its name would be there."""
    falling = np.geomspace(1e4, 1, 200)
    runs = [report_of(make_run(loss=falling)), report_of(make_run(loss=np.full(200, -2.0)))]
    runs[1].name = "negative"
    ax = plot_report(Report(runs=tuple(runs), version="1"))
    drawn(ax)
    assert ax.get_yscale() == "symlog"
    low, high = ax.get_ylim()
    assert low < -2.0 < 1e4 < high


@pytest.mark.parametrize(("lengths", "scale"), [((300, 25_600), "symlog"), ((300, 900), "linear")])
def test_a_short_run_is_not_hidden_by_a_long_one(lengths, scale):
    """Steps are logarithmic where one run has many times those of another."""
    runs = [report_of(make_run(n, loss=np.linspace(2, 1, n))) for n in lengths]
    runs[1].name = "long"
    ax = plot_report(Report(runs=tuple(runs), version="1"))
    drawn(ax)
    assert ax.get_xscale() == scale


def test_the_legend_says_which_run_has_no_finite_value():
    """It has a name there and no line."""
    runs = [report_of(make_run(10, loss=np.full(10, v))) for v in (1.0, np.nan)]
    runs[1].name = "dead"
    ax = plot_report(Report(runs=tuple(runs), version="1"))
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["exp7", "dead (no finite value)"]


def test_a_notebook_shows_the_figure():
    """The axes that `plot` returns are a picture, without pyplot."""
    assert plot_run(make_run())._repr_png_().startswith(b"\x89PNG")


def test_pyplot_saves_the_curves_where_it_is_loaded(tmp_path):
    """`plt.savefig` after `plot` saves the curves and no blank figure."""
    code = (
        "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt, postmortem\n"
        "axes = postmortem.load('sample_runs/nan-log-of-zero').plot()\n"
        "assert plt.gcf() is axes.figure and not hasattr(axes, '_repr_png_')\n"  # a notebook would show it twice
        f"plt.savefig({str(tmp_path / 'curves.svg')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "curves.svg").read_text().count("<path") > 20


def test_a_report_without_numbers_says_how_to_plot():
    """Large scans do not keep the numbers."""
    with pytest.raises(ValueError, match=r"plot postmortem\.load\('runs/exp7'\)"):
        plot_run(report_of(None))


@pytest.mark.parametrize(
    "value",
    [
        np.array([]),
        np.array([np.nan]),
        np.full(5, np.nan),
        np.array([1.0, np.inf, -np.inf]),
        np.array([5e-324, 1e308]),
        np.array([-1.0, 0.0]),
        np.array([0.5]),
    ],
    ids=["empty", "one-nan", "all-nan", "infinities", "extremes", "not-positive", "one"],
)
def test_odd_series_are_drawn_without_complaint(value):
    """Nothing, one point, only NaN, extremes: no exception and no warning."""
    drawn(plot_run(make_run(**{"train/loss": value, "other": value})))


def test_names_are_shown_as_they_are():
    """Dollar signs make no formula; a leading underscore does not hide the label."""
    ax = plot_run(make_run(**{"_loss": np.ones(3), "train/loss $x^$\x1b[31m": np.zeros(3)}))
    drawn(ax)
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert len(labels) == 2
    assert labels[0].strip() == "_loss"
    assert r"\$x^\$" in labels[1]


def test_a_million_points_are_thinned_but_keep_their_spike_and_first_nan():
    """Drawn points stay few; the highest, the lowest and the first non-finite point are among them."""
    value = np.ones(1_000_000)
    value[123_456], value[654_321], value[900_001] = 7.0, -7.0, np.nan
    ax = plot_run(make_run(1_000_000, **{"train/loss": value}), tags=["train/loss"])
    drawn(ax)
    line = ax.lines[0]
    assert len(line.get_xdata()) < 6000
    assert {123_456, 654_321, 900_001} <= set(line.get_xdata().tolist())
    assert (np.nanmin(line.get_ydata()), np.nanmax(line.get_ydata())) == (-7.0, 7.0)


def test_a_value_missing_every_other_step_is_few_artists():
    """A stretch costs no artist of its own."""
    value = np.where(np.arange(200_000) % 2, np.nan, 1.0)
    ax = plot_run(make_run(200_000, **{"train/loss": value}), tags=["train/loss"])
    drawn(ax)
    assert len(ax.lines) + len(ax.collections) == 3


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    """It is not part of a plain installation."""
    monkeypatch.setattr("postmortem.display.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"plot requires the extra \[plot\]"):
        make_run().plot()


def test_pyplot_is_not_loaded():
    """Unless the program does: no figure registry, no window backend, safe in servers and threads."""
    code = "import sys, postmortem.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
