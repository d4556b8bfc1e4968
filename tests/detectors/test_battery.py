"""What holds for every registered detector: its page, its cases, quiet on healthy runs, any input survived.

The cases stand in the test file of each detector, see ``cases.py``.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from postmortem.core.model import json_value
from postmortem.detectors import DETECTORS, NotChecked
from tests.cases import cases

ALL = list(DETECTORS)
LAYERS = ("grad_norm/layer1", "grad_norm/layer2", "grad_norm/layer3")
TAGS = (
    "loss",
    "val_loss",
    "grad_norm",
    *LAYERS,
    "lr",
    "loss_scale",
    "throughput",
    "step_time",
    "data_time",
    "gpu_mem_gb",
    "acc",
    "val_acc",
    "x",
)
RNG = np.random.default_rng(1)


def run(detector, view):
    """The findings of a detector with default options; an empty list where it cannot judge."""
    try:
        return list(detector(detector.Options()).detect(view))
    except NotChecked:
        return []


def degenerate():
    """name -> (steps, values) that any log may hold."""
    t = np.arange(200)
    wild = np.exp(0.3 * RNG.standard_normal(200))
    return {
        "empty": (t[:0], wild[:0]),
        "one point": (t[:1], wild[:1]),
        "two points": (t[:2], wild[:2]),
        "five points": (t[:5], wild[:5]),
        "constant": (t, np.full(200, 0.7312)),
        "zero": (t, np.zeros(200)),
        "all NaN": (t, np.full(200, np.nan)),
        "alternating NaN": (t, np.where(t % 2, np.nan, wild)),
        "all inf": (t, np.full(200, np.inf)),
        "both infinities": (t, np.where(t % 3 == 0, np.inf, np.where(t % 3 == 1, -np.inf, wild))),
        "denormal": (t, wild * 5e-324 * 10),
        "huge": (t, np.where(t % 2, 1.7e308, -1.7e308)),
        "huge positive": (t, np.where(t % 2, 1.7e308, 1e-300)),
        "negative": (t, -wild),
        "growing": (t, np.exp(t / 3.0)),
        "repeated steps": (t // 10, wild),
        "one step only": (t * 0 + 5, wild),
        "decreasing steps": (t[::-1], wild),
        "far steps": (t.astype(np.int64) * (2**62 // 200), wild),
    }


CASES = degenerate()


@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.name)
def test_the_docstring_is_a_page(detector):
    """Every page says what, why, how, typical causes, what to try and when it is wrong."""
    page = detector.__doc__ or ""
    for section in (
        "What it looks for",
        "Why it matters",
        "How",
        "Typical causes",
        "What to try",
        "Known false positives",
    ):
        assert f"{section}:" in page, f"{detector.name} lacks {section!r}"


@pytest.mark.parametrize("case", cases(DETECTORS, "fires"), ids=str)
def test_fires_on_its_fault_at_its_step(case, healthy, view_of):
    """One planted fault is found, at the step where it was planted."""
    options = dict(case.options)
    step = options.pop("step", None)
    found = run(case.of, view_of(case.make(healthy()), **options))
    assert found, f"{case.of.name} is silent"
    assert all(f.code == case.of.code and f.name == case.of.name and f.id == "" for f in found)
    if step is not None:
        assert found[0].step == step


@pytest.mark.parametrize("case", cases(DETECTORS, "quiet"), ids=str)
def test_quiet_on_what_only_looks_like_it(case, healthy, view_of):
    """Nothing above info where a run resembles the fault, and NotChecked is no answer: there is something to look
    at."""
    found = case.of(case.of.Options()).detect(view_of(case.make(healthy()), **case.options))
    assert [f for f in found if f.severity != "info"] == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("means", [1, 10], ids=["every step", "10-step means"])
@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.name)
def test_quiet_on_a_healthy_run(detector, means, seed, healthy, view_of):
    """Nothing above info on a healthy run, logged every step or as means of ten."""
    tags = {}
    for tag, data in healthy(800, seed).items():
        step, value = data if isinstance(data, tuple) else (np.arange(len(data)), data)
        if means > 1 and len(value) == 800:
            step, value = step[9::10], value.reshape(-1, 10).mean(axis=1)
        tags[tag] = (step, value)
    assert [f for f in run(detector, view_of(tags, ended="completed")) if f.severity != "info"] == []


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.name)
def test_survives_anything(detector, case, view_of):
    """No exception and no warning on degenerate series of every role; input unchanged, same answer twice, JSON
    evidence."""
    view = view_of(dict.fromkeys(TAGS, CASES[case]), ranks={"step_time": dict.fromkeys(range(3), CASES[case])})
    before = [(s.step.tobytes(), s.value.tobytes()) for s in view.series]
    first = run(detector, view)
    assert [(s.step.tobytes(), s.value.tobytes()) for s in view.series] == before
    again = run(
        detector, view_of(dict.fromkeys(TAGS, CASES[case]), ranks={"step_time": dict.fromkeys(range(3), CASES[case])})
    )
    assert [json.dumps(json_value(f.evidence)) for f in first] == [json.dumps(json_value(f.evidence)) for f in again]
    assert [(f.step, f.tag, f.message) for f in first] == [(f.step, f.tag, f.message) for f in again]
    for f in first:
        assert f.step is None or isinstance(f.step, int)
        json.dumps(json_value(f.evidence), allow_nan=False)


@pytest.mark.parametrize("case", cases(DETECTORS, "fires"), ids=str)
def test_the_order_of_the_tags_does_not_matter(case, healthy, view_of):
    """The same series in another order of their tags give the same findings."""
    tags, options = case.make(healthy()), {k: v for k, v in case.options.items() if k != "step"}
    whole = run(case.of, view_of(tags, **options))
    parts = run(case.of, view_of(dict(reversed(tags.items())), **options))
    assert {(f.name, f.tag, f.step) for f in whole} == {(f.name, f.tag, f.step) for f in parts}


@pytest.fixture(scope="module")
def own_runs():
    """The generator of benchmarks/own_runs.py as a dict of its names."""
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "own_runs.py"))


def test_own_runs(own_runs):
    """Of 42 small trainings with a planted fault or none, at least 40 are found at their step, and nothing else is
    said."""
    judged = [own_runs["judged"](made) for made in own_runs["runs"](1)]
    assert len(judged) >= 30
    assert sum(hit for hit, _ in judged) >= len(judged) - 2
    assert [others for _, others in judged if others] == []
