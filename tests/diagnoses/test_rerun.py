"""The command that is advised for a failed run can work with what the run left."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem.core.launched import Launched
from postmortem.core.run import Run
from postmortem.diagnoses.shared.rerun import rerun

KNOWN = Launched(("python", "train.py", "--lr", "1"), source="a.log", resume=("--resume", "{checkpoint}"))
SCRIPT = Launched(("python", "train.py"), source="train.py", folder="runs/a", guessed=True)


def run_with(**what):
    return Run(name="a", path=Path("runs/a"), streams=[], event_list=[], problems=[], sources=[], **what)


@pytest.mark.parametrize("script", [None, SCRIPT])
@pytest.mark.parametrize("launched", [None, KNOWN])
@pytest.mark.parametrize("recipe", [False, True])
@pytest.mark.parametrize(("checkpoint", "startable"), [(None, False), (None, True), ("runs/a/ck.pt", True)])
def test_what_a_command_needs_is_there(recipe, launched, script, checkpoint, startable):
    """A recipe needs a checkpoint; a replay by a command that no file tells needs one as well; `run` needs nothing."""
    again = rerun(run_with(recipe=recipe, launched=launched, script=script), 7, checkpoint, startable=startable)
    by_recipe = again.command.startswith("postmortem replay runs/a") and " -- " not in again.command
    assert by_recipe == (recipe and startable)
    assert ("--step 7" in again.command) == by_recipe
    assert ("postmortem run -- " in again.command) == (not startable and launched is None)
    assert (again.start == "checkpoint") == startable
    if not by_recipe and launched is not None:
        assert " -- python train.py --lr 1" in again.command
        assert again.note == ""
    elif not by_recipe:
        assert again.note  # what is not known is said to be filled in
    if checkpoint is not None:
        assert "ck.pt" in again.action


@pytest.mark.parametrize(
    ("what", "checkpoint", "action"),
    [
        (
            {},
            "runs/a/ck.pt",
            "postmortem replay runs/a -- COMMAND  (COMMAND is your training command, set to resume from runs/a/ck.pt)",
        ),
        (
            {"script": SCRIPT},
            "runs/a/ck.pt",
            "(cd runs/a && postmortem replay . -- python train.py RESUME_FROM ck.pt)  (add the options that train.py "
            "was given; RESUME_FROM stands for the option by which it resumes)",
        ),
        (
            {"script": SCRIPT},
            None,
            "(cd runs/a && postmortem run -- python train.py)  (add the options that train.py was given)",
        ),
        ({}, None, "postmortem run -- python train.py …  (python train.py … stands for your training command)"),
    ],
)
def test_what_is_to_be_filled_in(what, checkpoint, action):
    """The line, and what each word in it stands for that is not to be typed."""
    assert rerun(run_with(**what), 7, checkpoint, startable=checkpoint is not None).action == action
