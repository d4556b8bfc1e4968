"""`check` and `run --why` with real processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from postmortem.core.blame import Check, CheckResult, NonfiniteLoss
from postmortem.reporters.check_text import check_lines
from postmortem.silent.facts import Backward, LossComputed, Over, Place
from postmortem.silent.faults import FAULTS
from postmortem.silent.judge import learns_nothing, nonfinite_loss
from postmortem.silent.look import Look
from tests.cases import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")]

TRAIN = """
import pathlib, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    CLEAR
    loss.backward()
    optimizer.step()
    pathlib.Path("steps").open("a").write("x")
    if "--short" in sys.argv and pathlib.Path("steps").stat().st_size == 12:
        print("loss", loss.item())
        sys.exit(7)
"""


def called(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "postmortem", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_a_program_that_fails_is_said(tmp_path: Path) -> None:
    """Steps enough to judge, none of them at fault, and then an error: it does not pass."""
    (tmp_path / "train.py").write_text(
        TRAIN.replace("CLEAR", "optimizer.zero_grad()").replace("exit(7)", "exit('no disk')")
    )
    done = called(tmp_path, "check", "--no-try", "--", sys.executable, "train.py", "--short")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "the program failed with exit code 1: no disk, after 12 optimizer steps",
        "no other fault found in 12 optimizer steps",
    ]


def test_check_ends_the_program_and_leaves_its_folder_alone(tmp_path: Path) -> None:
    """The program never ends by itself; the answer names the line, and no file is written."""
    (tmp_path / "train.py").write_text(TRAIN.replace("CLEAR", "pass"))
    done = called(tmp_path, "check", "--steps", "20", "--format", "json", "--", sys.executable, "train.py")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert [(f["name"], f["family"], f["line"]) for f in answer["faults"]] == [("missing-zero-grad", "step-order", 9)]
    assert Path(answer["faults"][0]["file"]).name == "train.py"
    assert answer["schema_version"] == 1
    assert answer["steps"] == 20
    assert answer["notes"] == []
    assert "missing-zero-grad" in answer["checked"]
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_too_few_steps_are_no_clean_look(tmp_path: Path) -> None:
    """Not judged, with the reason, and no fault counts as absent."""
    train = TRAIN.replace("CLEAR", "optimizer.zero_grad(); import time; time.sleep(0.8)")
    (tmp_path / "train.py").write_text(train)
    done = called(tmp_path, "check", "--seconds", "1", "--verbose", "--", sys.executable, "train.py")
    assert done.returncode == 3, done.stdout
    first, *rest = done.stdout.splitlines()
    assert first.startswith("not judged: only ")
    passed = {line.split()[1] for line in rest if line.startswith("  ok ")}
    assert not passed.intersection(kind.name for kind in FAULTS)
    assert "note: it was stopped 1 s after its first step" in done.stdout
    assert "raise --seconds" in done.stdout


RECIPE = """
import torch
from postmortem import TrainStep

def recipe(ctx):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(200, 4), torch.randn(200)

    def step(model, batch):
        return torch.nn.functional.mse_loss(model(x[batch]), y[batch])

    return TrainStep(model, optimizer, step, batches=torch.arange(200).split(8))
"""


def test_the_steps_of_a_recipe(tmp_path: Path) -> None:
    """Instead of a command; two runs of it agree, and one of its batches is trained on for longer than they last."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    done = called(tmp_path, "check", "--recipe", "recipe.py", "--format", "json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert [(f["name"], Path(f["file"]).name, f["line"]) for f in answer["faults"]] == [
        ("loss-broadcast", "recipe.py", 12)
    ]
    assert answer["steps"] == 25
    checks = {c["name"]: c for c in answer["checks"]}
    assert checks["two-runs-agree"]["status"] == "ok"
    assert checks["one-batch-overfitted"]["detail"].startswith("trained on one batch for 100 steps")
    assert done.stderr.count("the command runs") == 4  # a trial of the fault, one batch, once more
    both = called(tmp_path, "check", "--recipe", "recipe.py", "--", sys.executable, "train.py")
    assert (both.returncode, "not both" in both.stderr) == (2, True)


def test_why_keeps_output_and_exit_code(tmp_path: Path) -> None:
    """The program runs for real; the checklist comes on stderr."""
    (tmp_path / "train.py").write_text(TRAIN.replace("CLEAR", "optimizer.zero_grad()"))
    plain = subprocess.run([sys.executable, "train.py", "--short"], cwd=tmp_path, capture_output=True, text=True)
    (tmp_path / "steps").unlink()
    done = called(tmp_path, "run", "--why", "--", sys.executable, "train.py", "--short")
    assert (done.returncode, done.stdout) == (7, plain.stdout)
    assert "no fault found in 12 optimizer steps" in done.stderr
    assert "checks found nothing wrong" in done.stderr
    assert "next:" not in done.stderr  # it ran to its end


def test_a_loss_that_is_nan_is_said_first(tmp_path: Path) -> None:
    """Neither "no fault" nor exit code 0; with the line to type that names what made it, before the checks."""
    bad = TRAIN.replace("CLEAR", "loss = loss * float('nan'); optimizer.zero_grad()")
    (tmp_path / "train.py").write_text(bad)
    done = called(tmp_path, "check", "--steps", "20", "--", sys.executable, "train.py")
    assert done.returncode == 1, done.stderr
    first, *rest = done.stdout.split("\n\n")
    assert first.startswith("the loss is NaN in ")
    assert "infinite" not in first
    assert "; first seen in optimizer step 0 (" in " ".join(first.split())
    assert f"  $ postmortem run -- {sys.executable} train.py" in rest[0]
    assert not (tmp_path / "steps").exists()


@pytest.mark.parametrize(
    ("value", "nan", "said"),
    [
        (math.inf, 33, "the loss is infinite in 4 and NaN in 33 of 40 backward passes"),
        (math.nan, 33, "the loss is NaN in 33 and infinite in 4 of 40 backward passes"),
        (math.inf, 0, "the loss is infinite in 37 of 40 backward passes"),
        (math.nan, 37, "the loss is NaN in 37 of 40 backward passes"),
    ],
)
def test_nan_is_not_infinite(value: float, nan: int, said: str) -> None:
    """Each kind is counted on its own, that which was seen first stands first."""
    result = CheckResult(("python", "train.py"), steps=40, nonfinite=NonfiniteLoss(3, value, 37, 40, nan=nan))
    assert " ".join(check_lines(result)).startswith(said)


ROWS = (Check("b", "ok", "fine"), Check("c", "not checked", "no such layer"), Check("a", "not ok", "bad"))


def test_what_is_useful_stands_first() -> None:
    """Counts and names in place of a long list; --verbose has each check with its reason, what is wrong first."""
    result = CheckResult(("python", "train.py"), checks=ROWS, steps=4)
    assert check_lines(result) == [
        "no fault found in 4 optimizer steps",
        "",
        "next: `postmortem run` watches the whole training:",
        "  $ postmortem run -- python train.py",
        "",
        "NOT OK a: bad",
        "1 check found nothing wrong",
        "1 check not made (--verbose says why): c",
    ]
    verbose = check_lines(result, verbose=True)[-4:]
    assert [line.split()[-1] for line in verbose] == ["Checklist:", "bad", "fine", "layer"]


def test_what_the_program_has_not_is_counted() -> None:
    """It is listed by name with --verbose only."""
    absent = Check("d", "not checked", "none seen: no GradScaler", absent=True)
    result = CheckResult(("python", "train.py"), checks=(*ROWS, absent), steps=4)
    assert check_lines(result)[-2:] == [
        "1 check found nothing wrong; for 1 more the program has nothing of the kind",
        "1 check not made (--verbose says why): c",
    ]
    assert "none seen: no GradScaler" in " ".join(check_lines(result, verbose=True))


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([1.0, math.nan, 2.0], (1, 1, 3)),
        ([1.0, math.inf, math.nan], (1, 2, 3)),
        ([math.inf, 2.0, 1.0], None),  # a loss scaler finds its scale
        ([2.0, math.inf], (1, 1, 2)),
        ([1.0, None], None),
        ([], None),
    ],
)
def test_a_loss_that_is_not_finite(losses, found) -> None:
    """The first one counts; infinities from which the loss came back do not."""
    nonfinite = nonfinite_loss([Look([Backward(step, loss) for step, loss in enumerate(losses)])])
    assert (nonfinite and (nonfinite.step, nonfinite.passes, nonfinite.of)) == found
    json.dumps(CheckResult((), nonfinite=nonfinite).as_json(), allow_nan=False)


def test_a_program_without_a_training(tmp_path: Path) -> None:
    """One line that says so, and exit code 2."""
    (tmp_path / "train.py").write_text("print('no torch here')")
    done = called(tmp_path, "check", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "no process of the command stepped an optimizer" in done.stderr
    assert "no torch here" in done.stderr


@pytest.mark.parametrize(("loss", "said"), [(0.7, "the loss stays at 0.7"), (0.4, None), (9.0, None)])
def test_a_loss_as_of_a_constant_prediction_is_said(loss: float, said: str | None) -> None:
    """Two classes of one size: one near ln 2 is no better than an answer that ignores the inputs."""
    at = Place("train.py", 3)
    computed = [LossComputed("cross_entropy", step, True, (8, 2), (8,), labels={"0": 4, "1": 4}) for step in range(3)]
    passes = [Backward(step, loss, ("NllLossBackward0",), at=at) for step in range(90)]
    found = learns_nothing([Look([*computed, *passes, Over(ended=True, steps=90)])])
    assert (found is None) if said is None else (found or "").startswith(said)
