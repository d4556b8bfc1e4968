"""A resume that lost part of its state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import postmortem
from postmortem.core.model import Checkpoint
from postmortem.core.view import View
from postmortem.diagnoses.corrupt_resume import CorruptResume
from postmortem.judging.causes import diagnose
from tests.diagnoses.cases import T, grow, quiet, tells


@tells(CorruptResume, root="lr-jump", step=250)
def a_schedule_that_starts_anew(course):
    return course(lr=lambda x: np.where(T < 250, x * 0.5 * (1 + np.cos(np.pi * T / 300)), x))


@quiet(CorruptResume)
def a_resume_with_all_of_its_state(course):
    """Steps are repeated, and loss and learning rate go on where they were."""
    every = np.r_[0:281, 250:400]
    return {"lr": (every, np.full(len(every), 3e-4)), "loss": (every, course()["loss"][every])}


def test_resume_with_another_learning_rate(story, course):
    """A learning rate that is another where the log starts again is the cause; what diverges after it, the
    consequence."""
    _, loss = course(loss=grow(255, 25))["loss"]
    steps = np.concatenate([T[:281], T[250:]])
    rate = np.where(np.arange(len(steps)) < 281, 3e-4, 3e-3)
    report = story({"lr": (steps, rate), "loss": (steps, loss[steps])})
    assert report.diagnosis is not None
    assert report.diagnosis.name == "corrupt-resume"
    assert report.findings[0].name == "lr-jump"
    assert "resumed with another learning rate" in report.diagnosis.summary
    assert "lr: continue at 0.0003, not 0.003" in report.diagnosis.next
    assert "divergence" in {f.name for f in report.findings if f.because_of == report.findings[0].id}


@pytest.mark.parametrize(("others", "good"), [((), "ckpt-250.pt"), ((249,), "ckpt-249.pt")])
def test_the_checkpoint_that_a_run_went_on_from(story, course, others, good):
    """One that says the very step at which the log goes on counts the step to come: the fault set in after it. Not
    where another one says the step before: then that is what the run was resumed from."""
    _, loss = course(loss=grow(255, 25))["loss"]
    steps = np.concatenate([T[:281], T[250:]])
    report = story({"lr": (steps, np.where(np.arange(len(steps)) < 281, 3e-4, 3e-3)), "loss": (steps, loss[steps])})
    checkpoints = [Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s) for s in (200, *others, 250, 300)]
    found, *_ = diagnose(View(replace(report.run, checkpoints=checkpoints, recipe=True)), report.findings)
    assert found is not None
    assert found.last_good_checkpoint == f"runs/exp7/{good}"
    onset = next(f.step for f in report.findings if f.name == "divergence")
    assert found.next[0] == f"postmortem replay runs/exp7 --step {onset} --checkpoint runs/exp7/{good}"


def log_with_a_jump(folder, said):
    """A text log whose loss doubles at step 410, after a line that `said` something, and falls again."""
    noise = np.random.default_rng(3).normal(0, 0.06, 60)
    lines = [f"step {10 * i} | loss {1.9 + noise[i] + 2 * max(0, 1 - (i - 41) / 8) * (i >= 41):.4f}" for i in range(60)]
    lines.insert(41, said)
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return postmortem.judge(folder)


def test_a_resume_that_only_the_log_announces(tmp_path):
    """The steps do not go back: without the line, the cause is open; with it, the state that was loaded."""
    report = log_with_a_jump(tmp_path, "loading checkpoint ckpt_latest.pt ... done, continuing at step 405")
    assert report.diagnosis is not None
    assert (report.diagnosis.name, report.diagnosis.strength) == ("corrupt-resume", "likely")
    assert "line 42" in " ".join(report.diagnosis.evidence_for)
    other = log_with_a_jump(tmp_path, "loading the next shard of the data ... done")
    assert other.diagnosis is not None
    assert other.diagnosis.name != "corrupt-resume"


def test_a_log_of_every_second_step_names_the_checkpoint_of_the_resume(story, course):
    """The checkpoint after step 249 says 250, the last step logged before is 248; the loss is compared at one step."""
    loss = course()["loss"]
    steps = np.concatenate([T[:282:2], T[250::2]])
    again = np.arange(len(steps)) >= 141
    report = story({"lr": (steps, np.where(again, 5e-5, 3e-4)), "loss": (steps, loss[steps] + 0.1 * again)})
    checkpoints = [Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s) for s in (200, 250)]
    found, *_ = diagnose(View(replace(report.run, checkpoints=checkpoints)), report.findings)
    assert found is not None
    assert found.last_good_checkpoint == "runs/exp7/ckpt-250.pt"
    assert any("at step 250 before the restart and is" in text for text in found.evidence_for)
