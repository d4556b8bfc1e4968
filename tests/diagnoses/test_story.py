"""Properties of every diagnosis: consequences under the root, last good step and checkpoint, advice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from postmortem.core.model import Checkpoint, Finding
from postmortem.core.view import View
from postmortem.diagnoses import CAUSES
from postmortem.diagnoses.shared.story import Story
from postmortem.judging.causes import diagnose
from postmortem.reporters.shared.commands import with_commands
from postmortem.signatures import CATALOGUE
from tests.diagnoses.cases import NAN_FROM_200, T, at_, from_


def test_healthy_runs_have_no_story(story, course):
    """There is no diagnosis without findings."""
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
    """The last stable step, the newest finite checkpoint before it, and the command that names both."""
    checkpoints = [
        Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s, finite=f)
        for s, f in ((100, None), (150, True), (190, False), (250, False))
    ]
    report = story(course(**NAN_FROM_200))
    run = replace(report.run, checkpoints=checkpoints, recipe=True)
    diagnosis, *_ = diagnose(View(run), report.findings)
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


@pytest.mark.parametrize("signature", CATALOGUE.values(), ids=lambda s: s.id)
def test_commands_in_advice_can_be_copied(signature):
    """A command that is shown on a line of its own ends its sentence and is whole."""
    for fix in signature.fixes:
        _, commands = with_commands(fix)
        assert all(fix.rstrip(" .").endswith((f"`{c}`", c)) for c in commands), fix


def test_a_cause_that_raises_costs_its_own_story_only(story, course, monkeypatch):
    """A cause that raises becomes a problem of the run; the next cause is asked."""
    first = next(iter(CAUSES))
    monkeypatch.setattr(first, "diagnose", staticmethod(lambda view, findings: {}["missing"]))
    report = story(course(**NAN_FROM_200))
    assert report.diagnosis is not None
    (problem,) = report.problems
    assert problem.what.startswith(f"{first.name}: the diagnosis failed: KeyError: 'missing'")


def test_a_setting_of_hundreds_of_digits_is_none(story, course):
    """An integer beyond any float is damage: the advice about the learning rate does without it."""
    report = story(
        course(loss=from_(200, np.inf)),
        config={"optimizer.lr": 10**400, "num_classes": 10**400, "max_steps": -(10**400)},
    )
    assert report.verdict == "failed"
    assert not any("optimizer.lr" in text for text in report.diagnosis.next)


def test_what_is_good_before_a_value_of_a_tag_that_nobody_knows(story):
    """Where a tag without a role is all that was logged, its own last finite step is the last good one, and the loss is
    not mentioned."""
    report = story({"angular/deviation": (T[::5], np.where(T[::5] < 200, 1.0 + 0.1 * np.sin(T[::5]), np.nan))})
    report.run.checkpoints[:] = [
        Checkpoint(path=f"runs/exp7/ckpt-{s}.pt", step=s, finite=s < 200) for s in (100, 180, 300)
    ]
    found, *_ = diagnose(View(report.run), report.findings)
    assert found is not None
    assert (found.last_good_step, found.last_good_checkpoint) == (195, "runs/exp7/ckpt-180.pt")
    assert not any("stable" in line for line in found.evidence_against)


def test_of_two_files_of_a_step_the_one_that_names_it(story, course):
    """latest.pt is written again by the next run; ckpt-150.pt stays."""
    report = story(course(**NAN_FROM_200))
    report.run.checkpoints[:] = [
        Checkpoint(path=f"runs/exp7/{name}.pt", step=150, finite=True) for name in ("ckpt-150", "latest")
    ]
    found, *_ = diagnose(View(report.run), report.findings)
    assert found is not None
    assert found.last_good_checkpoint == "runs/exp7/ckpt-150.pt"


def test_checkpoints_that_were_not_asked_for_their_step(story, course):
    """Where names tell no step and nothing was looked into, the replay finds the one to start from: nobody is told to
    save checkpoints."""
    report = story(course(loss=at_(300, 40)))
    run = replace(report.run, checkpoints=[Checkpoint(path="runs/exp7/c119.pt", step=None)], recipe=True)
    found, *_ = diagnose(View(run), report.findings)
    assert found is not None
    assert (found.last_good_step, found.last_good_checkpoint) == (299, None)
    assert found.next[0] == "postmortem replay runs/exp7 --step 300"
    assert not any("save checkpoints" in line for line in found.next)
    assert "checkpoint names do not show" in str(replace(report, diagnosis=found, checkpoints=tuple(run.checkpoints)))


ROOT = Finding(id="f1", code="NAN001", name="nan-onset", severity="error", tag="loss", step=200, message="loss is nan")


def test_a_story_leaves_out_texts_that_are_none(story, course):
    """Each method adds to its own part of the diagnosis, in the order of the calls."""
    view = View(story(course()).run)
    told = Story(view, ROOT).because("a", None).because("b").against(None).disproved_by("c").advise(None, "d")
    found = told.diagnosis("numerics", "It broke.")
    assert (found.name, found.summary, found.findings) == ("numerics", "It broke.", ("f1",))
    assert (found.evidence_for, found.evidence_against, found.disprove, found.next) == (("a", "b"), (), ("c",), ("d",))


def test_where_a_story_looks_for_the_last_good_step(story, course):
    """Before the root's step; before another one or at a given one; or anywhere, for a fault after the log."""
    view = View(story(course()).run)

    def good(told: Story) -> int | None:
        return told.diagnosis("numerics", "It broke.").last_good_step

    assert good(Story(view, ROOT)) == 199
    assert good(Story(view, ROOT).last_good(before=100)) == 99
    assert good(Story(view, ROOT).last_good(step=42)) == 42
    assert good(Story(view, ROOT).after_the_log()) == 399


@pytest.mark.parametrize("saved", [True, False])
def test_a_story_that_can_be_replayed(story, course, saved):
    """The command comes first where there is a checkpoint to start from, else after the advice, and is another one."""
    checkpoints = [Checkpoint(path="c150.pt", step=150, finite=True)] if saved else []
    run = replace(story(course()).run, checkpoints=checkpoints, recipe=True)
    found = Story(View(run), ROOT).advise("look").replay(step=210).diagnosis("numerics", "It broke.")
    if saved:
        assert found.next == ("postmortem replay runs/exp7 --step 210 --checkpoint c150.pt", "look")
    else:
        assert found.next[0] == "look"
        assert found.next[1] == (
            "there is no checkpoint from step 199 or earlier to replay from, so `postmortem run -- python train.py …` "
            "trains again under watch, and can name the operation and the samples (python train.py … stands for your "
            "training command)"
        )


def test_a_quoted_message_brings_its_own_full_stop(story, course):
    """`OOM Killed.` at the end of a sentence has one full stop, dots that stand for something left out stay three."""
    view = View(story(course()).run)
    told = Story(view, ROOT).diagnosis("numerics", "Memory ran out: OOM Killed.. The rest … is cut...")
    assert told.summary == "Memory ran out: OOM Killed. The rest … is cut..."
