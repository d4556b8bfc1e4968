"""Each root cause tells its story where it fits, with the consequences under the root and the next action."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from postmortem.core.model import Checkpoint, Event
from postmortem.core.view import View
from postmortem.diagnoses import CAUSES
from postmortem.judging.causes import diagnose
from postmortem.readers.text.failures import find_events
from postmortem.reporters.shared.outline import with_commands
from postmortem.signatures import CATALOGUE

N = 400
T = np.arange(N)


def from_(at, value):
    """A change: `value` (a number or a function of the values) from point `at` on."""

    def change(x):
        x[at:] = value(x[at:]) if callable(value) else value
        return x

    return change


def at_(at, factor):
    def change(x):
        x[at] *= factor
        return x

    return change


def grow(at, pace):
    return from_(at, lambda x: x * np.exp(np.minimum(np.arange(len(x)) / pace, 12)))


RATE_RAMP = from_(150, lambda x: x * 1.02 ** np.arange(len(x)))
NAN_FROM_200 = {"loss": from_(200, np.nan), "grad_norm": from_(200, np.nan), "val_loss": from_(20, np.nan)}

SCENARIOS = {
    "corrupt-resume": ({"lr": lambda x: np.where(T < 250, x * 0.5 * (1 + np.cos(np.pi * T / 300)), x)}, {}, "lr-jump", 250),
    "learning-rate-too-high": ({"lr": RATE_RAMP, "loss": grow(200, 25)}, {}, "divergence", None),
    "bad-batch": (NAN_FROM_200, {}, "nan-onset", 200),
    "evaluation-nan": ({"val_loss": from_(20, np.nan)}, {}, "nan-onset", 209),
    "exploding-gradients": ({"grad_norm": grow(200, 15), "loss": grow(260, 30)}, {}, "gradient-explosion", None),
    "diverged": ({"loss": grow(200, 50)}, {}, "divergence", None),
    "numerics": ({"grad_norm": from_(200, np.nan)}, {}, "nonfinite-gradient", 200),
    "memory-leak": ({"memory_gb": from_(100, lambda x: x + np.arange(len(x)) / 40)}, {}, "memory-growth", None),
    "vanishing-gradients": ({"grad_norm": from_(200, lambda x: x * np.exp(-np.arange(len(x)) / 12))}, {}, "gradient-vanishing", None),
    "dead-schedule": ({"lr": from_(200, 0.0)}, {}, "lr-zero", 200),
    "overfitting": ({"val_loss": from_(20, lambda x: x * (1 + 0.08 * np.arange(len(x))))}, {}, "overfitting", None),
    "slowdown": ({"step_time": from_(200, lambda x: 2 * x)}, {}, "throughput-drop", 200),
    "silent-death": ({}, {"config": {"max_steps": 9000}}, "silent-death", 399),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_cause_is_named(name, story, course):
    """One planted cause gives its story, rooted in the finding that came first."""
    changes, run, root, step = SCENARIOS[name]
    report = story(course(**changes), **run)
    assert report.diagnosis is not None
    assert report.diagnosis.name == name
    assert report.findings[0].name == root
    assert report.diagnosis.findings[0] == report.findings[0].id
    assert step is None or report.findings[0].step == step
    assert report.diagnosis.next
    assert report.diagnosis.disprove


def test_resume_with_another_learning_rate(story, course):
    """A learning rate that is another where the log starts again is the cause; what diverges after it, the consequence."""
    _, loss = course(loss=grow(255, 25))["loss"]
    steps = np.concatenate([T[:281], T[250:]])
    rate = np.where(np.arange(len(steps)) < 281, 3e-4, 3e-3)
    report = story({"lr": (steps, rate), "loss": (steps, loss[steps])})
    assert report.diagnosis is not None
    assert report.diagnosis.name == "corrupt-resume"
    assert report.findings[0].name == "lr-jump"
    assert "resumed with another learning rate" in report.diagnosis.summary
    assert "lr: go on at 0.0003, not 0.003" in report.diagnosis.next
    assert "divergence" in {f.name for f in report.findings if f.because_of == report.findings[0].id}


@pytest.mark.parametrize(("every", "root"), [(10, "loss"), (60, "val_loss")])
def test_an_evaluation_between_two_rows_of_the_loss(story, every, root):
    """An evaluation that is NaN one row before the loss met the same fault; where it is the denser of the two it is the first to tell."""
    t = np.arange(0, 400, every)
    loss = np.where(t < 250, 2 * np.exp(-t / 100), np.nan)
    evaluated = np.arange(49, 400, 50) if root == "loss" else np.arange(4, 400, 5)
    val = np.where(evaluated < 244, 2.1 * np.exp(-evaluated / 100), np.nan)
    report = story({"train_loss": (t, loss), "val_loss": (evaluated, val)})
    assert report.diagnosis is not None
    if root == "loss":
        assert (report.findings[0].tag, report.findings[0].step) == ("train_loss", 250)
        assert report.diagnosis.last_good_step == 240
        assert report.findings[1].because_of == report.findings[0].id
    else:
        assert report.diagnosis.name == "evaluation-nan"
        assert (report.findings[0].tag, report.findings[0].step) == ("val_loss", 244)


def test_healthy_runs_have_no_story(story, course):
    """Nothing is told where nothing was found."""
    report = story(course(), ended="completed")
    assert report.verdict == "healthy"
    assert report.diagnosis is None


def test_consequences_stand_under_the_root(story, course):
    """The NaN of the gradient and of the evaluation come from the NaN of the loss."""
    report = story(course(**NAN_FROM_200))
    root = report.findings[0]
    assert (root.tag, root.because_of) == ("loss", None)
    assert {f.tag: f.because_of for f in report.findings[1:]} == {"grad_norm": root.id, "val_loss": root.id}


def test_last_good_step_and_checkpoint(story, course):
    """The last calm step, the newest finite checkpoint before it, and the command that names both."""
    checkpoints = [Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s, finite=f) for s, f in ((100, None), (150, True), (190, False), (250, False))]
    report = story(course(**NAN_FROM_200))
    report.run.checkpoints = checkpoints
    diagnosis, _ = diagnose(View(report.run), report.findings)
    assert diagnosis.last_good_step == 199
    assert diagnosis.last_good_checkpoint == "runs/exp7/ckpt-150.pt"
    assert diagnosis.next[0] == "postmortem replay runs/exp7 --step 200 --checkpoint runs/exp7/ckpt-150.pt"


def test_a_spike_before_the_onset_is_not_calm(story, course):
    """The last good step lies before the climb, where the loss was already far above its level."""

    def change(x):
        x[195:200] *= [8, 20, 50, 100, 200]
        x[200:] = np.nan
        return x

    diagnosis = story(course(loss=change, grad_norm=from_(200, np.nan))).diagnosis
    assert diagnosis.last_good_step <= 194


def test_rate_advice_names_the_values_seen(story, course):
    """The change of the learning rate is given in numbers, under the key of the configuration."""
    changes, *_ = SCENARIOS["learning-rate-too-high"]
    diagnosis = story(course(**changes), config={"optimizer.lr": 3e-4}).diagnosis
    advice = next(line for line in diagnosis.next if line.startswith("optimizer.lr: "))
    high, low = (float(x) for x in re.findall(r"[\d.e-]+(?= →)|(?<=→ )[\d.e-]+", advice))
    assert low < high
    assert "calm at" in advice


def test_loss_scale_collapse(story, course):
    """A scaler that halves for ever is the root; the infinite gradients on the way are its consequence."""
    tags = course(grad_norm=from_(200, np.inf))
    tags["loss_scale"] = 65536.0 * 0.5 ** np.maximum(0, T - 199)
    report = story(tags)
    assert report.diagnosis.name == "loss-scale-collapse"
    assert report.findings[0].name == "loss-scale-collapse"
    assert all(f.because_of == report.findings[0].id for f in report.findings[1:] if f.name in ("inf-onset", "nonfinite-gradient"))


def test_fp16_overflow(story, course):
    """An infinite loss in a run that says it computes in fp16."""
    report = story(course(loss=from_(200, np.inf), grad_norm=from_(200, np.inf)), config={"precision": "16-mixed"})
    assert report.diagnosis.name == "fp16-overflow"
    assert any("precision" in line for line in report.diagnosis.evidence_for)


def test_nan_from_the_start(story):
    """A loss that never was a number points at data and initial weights."""
    report = story({"loss": np.full(50, np.nan), "lr": np.full(50, 1e-3)})
    assert report.diagnosis.name == "nan-from-the-start"


def test_frozen_weights(story, course):
    """A bit-identical validation loss beside a noisy flat training loss."""
    rng = np.random.default_rng(0)
    tags = course(loss=from_(150, lambda x: 1.0 * np.exp(0.05 * rng.standard_normal(len(x)))), val_loss=from_(15, 1.04321))
    assert story(tags).diagnosis.name == "no-learning"


def test_crash_tells_what_the_signature_knows(story, course):
    """The message, its line and the fixes of the catalogue."""
    event = Event(
        kind="cuda-oom", severity="error", message="CUDA out of memory. Tried to allocate 2 GiB", file="train.out", line=812, step=399, rank=3
    )
    report = story(course(), event_list=[event], ended="out-of-memory")
    assert report.diagnosis.name == "crash: cuda-oom"
    assert "line 812 of train.out" in report.diagnosis.summary
    assert "postmortem explain cuda-oom" in report.diagnosis.next


def test_an_exception_that_no_signature_knows_is_advised_by_its_class(story, course):
    """What is true of all exceptions stands behind `explain`; the advice is for this one."""
    frame = 'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n    fit(depth=3)\n'
    text = frame + "TypeError: fit() got an unexpected keyword argument 'depth'\n"
    (event,) = find_events(enumerate(text.split("\n"), 1), path="train.out").events
    found = story(course(), event_list=[replace(event, step=399)], ended="crashed").diagnosis
    assert found.name == "crash: generic-exception"
    assert found.next[0] == event.fields["advice"][0]


@pytest.mark.parametrize("signature", CATALOGUE.values(), ids=lambda s: s.id)
def test_commands_in_advice_can_be_copied(signature):
    """A command that is shown on a line of its own ends its sentence and is whole."""
    for fix in signature.fixes:
        _, commands = with_commands(fix)
        assert all(fix.rstrip(" .").endswith((f"`{c}`", c)) for c in commands), fix


def test_memory_leak_explains_the_crash(story, course):
    """Memory that grew is the root, the out-of-memory its consequence."""
    event = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", file="train.out", line=9, step=399)
    tags = course(memory_gb=from_(100, lambda x: x + np.arange(len(x)) / 40))
    report = story(tags, event_list=[event], ended="out-of-memory")
    assert report.diagnosis.name == "memory-leak"
    assert next(f for f in report.findings if f.name == "crash").because_of == report.findings[0].id


def test_an_unrelated_crash_is_not_blamed_on_nan(story, course):
    """A missing file ended the run; the NaN before it is told apart."""
    event = Event(kind="not-found", severity="error", message="FileNotFoundError: shard-7.tar", file="train.out", line=9, step=399)
    report = story(course(**NAN_FROM_200), event_list=[event], ended="crashed")
    assert next(f for f in report.findings if f.name == "crash").because_of is None


def test_restart_alone(story):
    """A restart and nothing else: the surviving history is judged."""
    every = np.r_[0:200, 150:400]
    rng = np.random.default_rng(0)
    report = story({"loss": (every, (0.5 + 2 * np.exp(-every / 70)) * np.exp(0.03 * rng.standard_normal(len(every))))})
    assert report.diagnosis.name == "restarted"
    assert report.verdict == "suspect"


@pytest.mark.parametrize("cause", list(CAUSES), ids=lambda c: c.name)
def test_every_cause_has_a_page_and_survives_nothing(cause, story):
    """A docstring for `explain`, and None for a run without findings."""
    assert cause.__doc__
    run = story({"loss": np.ones(3)}).run
    assert cause.diagnose(View(run), ()) is None


def test_a_cause_that_raises_costs_its_own_story_only(story, course, monkeypatch):
    """Its fault is a problem of the run; the next cause is asked."""
    first = next(iter(CAUSES))
    monkeypatch.setattr(first, "diagnose", staticmethod(lambda view, findings: {}["missing"]))
    report = story(course(**NAN_FROM_200))
    assert report.diagnosis is not None
    (problem,) = report.problems
    assert problem.what.startswith(f"{first.name}: the diagnosis failed: KeyError: 'missing'")


def test_a_setting_of_hundreds_of_digits_is_none(story, course):
    """An integer beyond any float is damage: the advice about the learning rate does without it."""
    report = story(course(loss=from_(200, np.inf)), config={"optimizer.lr": 10**400, "num_classes": 10**400, "max_steps": -(10**400)})
    assert report.verdict == "failed"
    assert not any("optimizer.lr" in text for text in report.diagnosis.next)


@pytest.mark.parametrize(("others", "good"), [((), "ckpt-250.pt"), ((249,), "ckpt-249.pt")])
def test_the_checkpoint_that_a_run_went_on_from(story, course, others, good):
    """One that says the very step at which the log goes on counts the step to come: the fault set in after it. Not where another one
    says the step before: then that is what the run was resumed from."""
    _, loss = course(loss=grow(255, 25))["loss"]
    steps = np.concatenate([T[:281], T[250:]])
    report = story({"lr": (steps, np.where(np.arange(len(steps)) < 281, 3e-4, 3e-3)), "loss": (steps, loss[steps])})
    report.run.checkpoints = [Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s) for s in (200, *others, 250, 300)]
    found, _ = diagnose(View(report.run), report.findings)
    assert found is not None
    assert found.last_good_checkpoint == f"runs/exp7/{good}"
    onset = next(f.step for f in report.findings if f.name == "divergence")
    assert found.next[0] == f"postmortem replay runs/exp7 --step {onset} --checkpoint runs/exp7/{good}"


def test_what_is_good_before_a_value_of_a_tag_that_nobody_knows(story):
    """Where a tag without a role is all that was logged, its own last finite step is the last good one, and nothing is said of the loss."""
    report = story({"angular/deviation": (T[::5], np.where(T[::5] < 200, 1.0 + 0.1 * np.sin(T[::5]), np.nan))})
    report.run.checkpoints = [Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s, finite=s < 200) for s in (100, 180, 300)]
    found, _ = diagnose(View(report.run), report.findings)
    assert found is not None
    assert (found.last_good_step, found.last_good_checkpoint) == (195, "runs/exp7/ckpt-180.pt")
    assert not any("calm" in line for line in found.evidence_against)


def test_of_two_files_of_a_step_the_one_that_names_it(story, course):
    """latest.pt is written again by the next run; ckpt-150.pt stays."""
    report = story(course(**NAN_FROM_200))
    report.run.checkpoints = [Checkpoint(path=f"runs/exp7/{name}.pt", step=150, finite=True) for name in ("ckpt-150", "latest")]
    found, _ = diagnose(View(report.run), report.findings)
    assert found is not None
    assert found.last_good_checkpoint == "runs/exp7/ckpt-150.pt"


def test_checkpoints_that_were_not_asked_for_their_step(story, course):
    """Where names tell no step and nothing was looked into, the replay finds the one to start from: nobody is told to save checkpoints."""
    report = story(course(loss=at_(300, 40)))
    report.run.checkpoints = [Checkpoint(path="runs/exp7/c119.pt", step=None)]
    found, _ = diagnose(View(report.run), report.findings)
    assert found is not None
    assert (found.last_good_step, found.last_good_checkpoint) == (299, None)
    assert found.next[0] == "postmortem replay runs/exp7 --step 300"
    assert not any("save checkpoints" in line for line in found.next)
    assert "names of the checkpoints do not tell" in str(replace(report, diagnosis=found, checkpoints=tuple(report.run.checkpoints)))
