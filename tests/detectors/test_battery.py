"""What holds for every registered detector: its page, one case that fires, quiet on healthy runs, any input survived."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from postmortem.core.model import Event, Problem, json_value
from postmortem.detectors import DETECTORS, NotChecked

ALL = list(DETECTORS)
LAYERS = ("grad_norm/layer1", "grad_norm/layer2", "grad_norm/layer3")
TAGS = ("loss", "val_loss", "grad_norm", *LAYERS, "lr", "loss_scale", "throughput", "step_time", "data_time", "gpu_mem_gb", "acc", "val_acc", "x")
RNG = np.random.default_rng(1)


def run(detector, view):
    """The findings of a detector with default options; an empty list where it cannot judge."""
    try:
        return list(detector(detector.Options()).detect(view))
    except NotChecked:
        return []


def spoiled(base, tag, change):
    """`base` with the values of one tag changed in place by `change(values)`."""
    step, value = base[tag] if isinstance(base[tag], tuple) else (np.arange(len(base[tag])), base[tag])
    value = value.copy()
    change(value)
    return base | {tag: (step, value)}


def put(at, value):
    def change(x):
        x[at] = value

    return change


def scale(at, factor):
    def change(x):
        x[at] = x[at] * factor

    return change


def firing(base):
    """detector name -> (tags, arguments of the view, expected step or None)."""
    n = 400
    t = np.arange(n)
    noise = np.exp(0.05 * RNG.standard_normal(n))
    every = np.r_[0:200, 150:400]
    return {
        "nan-onset": (spoiled(base, "train/loss", put(slice(200, None), np.nan)), {}, 200),
        "inf-onset": (spoiled(base, "train/loss", put(200, np.inf)), {}, 200),
        "nonfinite-gradient": (spoiled(base, "grad_norm", put(slice(200, None), np.nan)) | {"loss_scale": np.ones(n)}, {}, 200),
        "masked-nonfinite": (spoiled(base, "train/loss", put(slice(200, None), 0.0)), {}, 200),
        "loss-spike": (spoiled(base, "train/loss", scale(slice(200, 203), 5.0)), {}, 200),
        "divergence": (spoiled(base, "train/loss", scale(slice(200, None), np.exp(np.arange(200) / 60))), {}, None),
        "loss-plateau": ({"loss": 2.3 * np.exp(0.01 * RNG.standard_normal(n))}, {}, 0),
        "constant-metric": (base | {"val_acc": (t[9::10], np.full(40, 0.117))}, {}, 9),
        "chance-level-loss": ({"loss": np.log(10) + 0.01 * RNG.standard_normal(n)}, {"config": {"num_classes": 10}}, 0),
        "overfitting": (base | {"val/loss": (t[9::10], 0.5 + np.abs(np.arange(40) - 12) * 0.05)}, {}, 129),
        "gradient-spike": (spoiled(base, "grad_norm", scale(200, 40.0)), {}, 200),
        "gradient-explosion": (spoiled(base, "grad_norm", scale(slice(200, None), np.exp(np.minimum(np.arange(200) / 10, 6)))), {}, None),
        "gradient-vanishing": (spoiled(base, "grad_norm", scale(slice(200, None), np.exp(-np.arange(200) / 10))), {}, None),
        "loss-scale-collapse": (spoiled(base, "loss_scale", scale(slice(300, None), 0.5 ** np.arange(1, 101))), {}, 300),
        "lr-jump": (spoiled(base, "lr", put(slice(300, None), 1e-3)), {}, 300),
        "lr-zero": (spoiled(base, "lr", put(slice(200, None), 0.0)), {}, 200),
        "throughput-drop": (spoiled(base, "step_time", scale(slice(200, None), 2.0)), {}, 200),
        "dataloader-stall": (spoiled(base, "data_time", put([200, 231, 290], 3.0)), {}, 200),
        "memory-growth": (spoiled(base, "gpu_mem_gb", lambda x: x.__iadd__(np.maximum(0, np.arange(400) - 150) / 25)), {}, None),
        "straggler-rank": ({}, {"ranks": {"step_time": {r: (0.2 if r != 2 else 0.4) * noise for r in range(4)}}}, 0),
        "step-reset": ({"train/loss": (every, np.exp(-every / 100) + 1)}, {}, 150),
        "silent-death": (base, {"config": {"max_steps": 5000}}, 399),
        "crash": (base, {"event_list": [Event(kind="cuda-oom", severity="error", message="CUDA out of memory", line=7, step=399)]}, 399),
        "hang": (base, {"ended": "hung"}, 399),
        "truncated-file": (base, {"problems": [Problem(path="a", what="the file ends inside a record", offset=10)]}, None),
        "corrupt-record": (base, {"problems": [Problem(path="a", what="a record's checksum does not fit", offset=10)]}, None),
        "unreadable-file": (base, {"problems": [Problem(path="a", what="cannot be read: permission denied")]}, None),
    }


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
    for section in ("What it looks for", "Why it matters", "How", "Typical causes", "What to try", "Known false positives"):
        assert f"{section}:" in page, f"{detector.name} lacks {section!r}"


@pytest.mark.parametrize("detector", [d for d in ALL if not d.code.startswith("CKP")], ids=lambda d: d.name)
def test_fires_on_its_fault_at_its_step(detector, healthy, view_of):
    """One planted fault is found, at the step where it was planted."""
    tags, options, step = firing(healthy())[detector.name]
    found = run(detector, view_of(tags, **options))
    assert found, f"{detector.name} is silent"
    assert all(f.code == detector.code and f.name == detector.name and f.id == "" for f in found)
    if step is not None:
        assert found[0].step == step


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
    """No exception and no warning on degenerate series of every role; input unchanged, same answer twice, JSON evidence."""
    view = view_of(dict.fromkeys(TAGS, CASES[case]), ranks={"step_time": dict.fromkeys(range(3), CASES[case])})
    before = [(s.step.tobytes(), s.value.tobytes()) for s in view.series]
    first = run(detector, view)
    assert [(s.step.tobytes(), s.value.tobytes()) for s in view.series] == before
    again = run(detector, view_of(dict.fromkeys(TAGS, CASES[case]), ranks={"step_time": dict.fromkeys(range(3), CASES[case])}))
    assert [json.dumps(json_value(f.evidence)) for f in first] == [json.dumps(json_value(f.evidence)) for f in again]
    assert [(f.step, f.tag, f.message) for f in first] == [(f.step, f.tag, f.message) for f in again]
    for f in first:
        assert f.step is None or isinstance(f.step, int)
        json.dumps(json_value(f.evidence), allow_nan=False)


@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.name)
def test_a_split_log_gives_the_same_answer(detector, healthy, view_of):
    """Two files of one writer, one after the other, are judged like one."""
    tags, options, _ = firing(healthy()).get(detector.name, (healthy(), {}, None))
    whole = run(detector, view_of(tags, **options))
    interleaved = dict(reversed(tags.items()))
    parts = run(detector, view_of(interleaved, **options))
    assert {(f.name, f.tag, f.step) for f in whole} == {(f.name, f.tag, f.step) for f in parts}


@pytest.fixture(scope="module")
def own_runs():
    """The generator of benchmarks/own_runs.py as a dict of its names."""
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "own_runs.py"))


def test_own_runs(own_runs):
    """Of 42 small trainings with a planted fault or none, at least 40 are found at their step, and nothing else is said."""
    judged = [own_runs["judged"](made) for made in own_runs["runs"](1)]
    assert len(judged) >= 30
    assert sum(hit for hit, _ in judged) >= len(judged) - 2
    assert [others for _, others in judged if others] == []


@pytest.mark.parametrize(("first", "settled", "said"), [(2.0**26, 2.0**17, False), (2.0**16, 2.0**8, False), (2.0**16, 1.0, True)])
def test_the_search_for_the_first_loss_scale(first, settled, said, view_of):
    """Halving from the first step on until a scale of use is found is how a scaler begins; down to nothing is not."""
    scale = np.maximum(settled, first * 0.5 ** np.arange(200))
    scale[150:] *= 2
    found = run(DETECTORS["AMP001"], view_of({"loss_scale": scale}))
    assert bool(found) == said


@pytest.mark.parametrize(("after", "severity"), [(2.3, "error"), (0.4, "warning")])
def test_a_spike_beside_which_what_was_lost_looks_small(after, severity, view_of):
    """A loss that leaps to forty and then stays at chance has not recovered, small as chance is beside forty."""
    loss = 0.3 * np.exp(0.05 * RNG.standard_normal(200))
    loss[120], loss[121:] = 40.0, after * np.exp(0.02 * RNG.standard_normal(79))
    (found,) = run(DETECTORS["LOS001"], view_of({"loss": loss}))
    assert (found.step, found.severity) == (120, severity)


def test_a_critic_that_swings_about_zero(view_of):
    """The losses of a Wasserstein GAN rise and fall slowly and change their sign: no spike. One far beyond all before is."""
    t = np.arange(350)
    critic = np.cos(t / 25) * np.exp(-t / 150) + 0.05 * RNG.standard_normal(350)
    tags = {"loss/critic": critic, "loss/gen": -critic + 0.05 * RNG.standard_normal(350)}
    assert run(DETECTORS["LOS001"], view_of(tags)) == []
    critic[200] = 60.0
    assert [f.step for f in run(DETECTORS["LOS001"], view_of(tags))] == [200]
