"""What to do after a replay, the narrowest change first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postmortem.core.culprit import Culprit, Fix
from postmortem.core.launched import Launched
from postmortem.core.run import Run
from postmortem.core.view import View
from postmortem.replay.advice import advice


def culprit(**fields: Any) -> Culprit:
    found = {
        "cause": "forward-op",
        "phase": "forward",
        "op": "log",
        "file": "train.py",
        "line": 7,
        "step": 12,
        **fields,
    }
    return Culprit(**found)


def test_line_then_sample_then_resume() -> None:
    """The line that cured the step comes first, then the sample, then where to go on from."""
    found = culprit(
        samples=(3,),
        fixes=(
            Fix(name="drop_sample", cured=True),
            Fix(name="eps", cured=True, how="log kept away"),
            Fix(name="lower_lr", cured=False),
        ),
        suggestion="--- train.py\n+++ train.py\n@@ -7 +7 @@\n-    y = x.log()\n+    y = x.clamp(min=1e-06).log()\n",
    )
    assert advice(found, None, "ck_9.pt") == (
        "train.py:7: `y = x.clamp(min=1e-06).log()` (makes the step finite; training on with this line was not "
        "tested). Try this first: it changes this line alone, and data, learning rate and precision stay as they are",
        "inspect sample 3 of the batch: without it the step does not fail",
        "then resume from ck_9.pt",
    )


KNOWN = Launched(("python", "train.py", "--lr", "1"), source="job.sh", resume=("--resume", "{checkpoint}"))
HIDDEN = Launched(("python", "train.py"), source="job.sh")
THERE = Launched(
    ("python", "train.py"), source="train.py", folder="runs/a", guessed=True, resume=("--ckpt={checkpoint}",)
)
GUESSED = Launched(("python", "train.py"), source="train.py", guessed=True)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "then resume from ck_9.pt; the training's own command is not known here"),
        ({"launched": KNOWN}, "then resume from ck_9.pt, by this command: `python train.py --lr 1 --resume ck_9.pt`"),
        (
            {"launched": HIDDEN},
            "then resume from ck_9.pt (RESUME_FROM stands for the option by which it resumes; if there is none, let it "
            "load the state of model, optimizer, scheduler and random generators before its loop, and begin with the "
            "step after the checkpoint), by this command: `python train.py RESUME_FROM ck_9.pt`",
        ),
        (
            {"script": THERE},
            "then resume from ck_9.pt (add the options that train.py was given), by this command: "
            "`(cd runs/a && python train.py --ckpt=../../ck_9.pt)`",
        ),
        (
            {"script": GUESSED},
            "then resume from ck_9.pt (train.py shows no option for that: let it load the state of model, optimizer, "
            "scheduler and random generators before its loop, and begin with the step after the checkpoint), or start "
            "the training again",
        ),
    ],
)
def test_the_training_goes_on_by_its_own_command(how: dict[str, Any], said: str) -> None:
    """Where files of the run show it; what they do not show has to be filled in, and the advice says so."""
    run = Run(name="a", path=Path("runs/a"), streams=[], event_list=[], problems=[], sources=[], **how)
    fixed = culprit(fixes=(Fix(name="eps", cured=True, how="log kept away"),))
    assert advice(fixed, View(run), "ck_9.pt")[-1].startswith(said)


def test_the_loss_of_a_changed_line_stands_beside_those_to_compare_it_with() -> None:
    """With that of the step before and that without the samples at fault: the user chooses between both cures."""
    line = "--- train.py\n+++ train.py\n@@ -7 +7 @@\n-    y = x.log()\n+    y = x.clamp(min=1e-06).log()\n"
    fixes = (Fix(name="eps", cured=True, loss=1.392, before=1.059), Fix(name="drop_sample", cured=True, loss=1.103))
    told = advice(culprit(samples=(3,), fixes=fixes, suggestion=line), None, "x.pt")[0]
    assert "the loss is then 1.392, after 1.059 in the step before; without this sample it is 1.103; " in told
    assert fixes[1].loss_after == "the loss is then 1.103"


def test_overflow_names_the_precisions_that_cured() -> None:
    """An overflow of half precision is computed in what was tried and is enough, not in double where single does."""
    fixes = tuple(Fix(name=n, cured=True) for n in ("fp64", "bf16", "fp32"))
    said = advice(culprit(cause="dtype-overflow", op="mul", fixes=fixes), None, "x.pt")
    assert said[0] == "compute train.py:7 in fp32 or bf16 instead of fp16 (tried on the whole step: cures it)"


def test_of_an_overflow_the_precision_comes_before_the_samples() -> None:
    """Their values are the largest, no more: the next batch has others. Double precision is not named beside single."""
    fixes = tuple(Fix(name=n, cured=True) for n in ("fp32", "fp64", "drop_sample"))
    said = advice(culprit(cause="dtype-overflow", op="bmm", samples=(2,), fixes=fixes), None, "x.pt")
    assert said[0].startswith("compute train.py:7 in fp32 (tried on the whole step: cures it)")
    assert said[1].startswith("inspect sample 2")


@pytest.mark.parametrize(("low", "high", "said"), [(-100, -100, "its ignore_index"), (-100, 3, "check the input")])
def test_targets_that_are_all_left_out(low: int, high: int, said: str) -> None:
    """The mean of a loss over no target is 0/0, which the statistics of the targets show."""
    inputs = [{"shape": [4, 5], "dtype": "float32"}, {"shape": [4], "dtype": "int64", "min": low, "max": high}]
    found = culprit(op="nll_loss", tensor={"inputs": inputs}, fixes=(Fix(name="eps", cured=False),))
    assert said in advice(found, None, "x.pt")[0]


def test_nothing_cured_points_at_the_input() -> None:
    """Where no general repair helps, the shapes that the operator was given are what there is to look at."""
    found = culprit(op="std", tensor={"inputs": [{"shape": [1]}]}, fixes=(Fix(name="eps", cured=False),))
    assert (
        advice(found, None, "x.pt")[0]
        == "check the input of std at train.py:7 (shape [1]): no general fix makes the step finite"
    )


def test_bad_state_is_not_resumed_from() -> None:
    """A checkpoint whose state is at fault is no place to go on from; without a culprit there is nothing to say."""
    assert advice(culprit(phase="parameters"), None, "x.pt")[-1] == "do not resume from x.pt: its state is the cause"
    assert advice(culprit(phase="none"), None, "x.pt") == ()


def test_a_loss_far_from_its_course_is_no_cure() -> None:
    """Such a fix comes after all others; where there are only such, what to look at comes first."""
    line = "--- train.py\n+++ train.py\n@@ -7 +7 @@\n-    y = a / b\n+    y = a / b.clamp(min=1e-06)\n"
    far = Fix(name="eps", cured=True, loss=8.7e9, far_from=0.13)
    text = (
        "train.py:7: `y = a / b.clamp(min=1e-06)` "
        "(makes the step finite; the loss is then 8.7e+09, far from its course (about 0.13 before){}; "
        "training on with this line was not tested)"
    )
    dropped = Fix(name="drop_sample", cured=True, loss=0.2)
    both = advice(culprit(op="div", samples=(3,), fixes=(far, dropped), suggestion=line), None, "x.pt")
    assert both[1] == text.format("; without this sample it is 0.2")
    assert both[0].startswith("inspect sample 3")
    alone = advice(culprit(op="div", fixes=(far,), suggestion=line), None, "x.pt")
    assert alone[:2] == (
        "check the input of div at train.py:7: no general fix keeps the loss on its course",
        text.format(""),
    )
