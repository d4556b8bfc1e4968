"""The user's own command as the recipe: `replay RUN -- COMMAND` and `run -- COMMAND`, with real processes."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from postmortem import api
from tests import warm

TRAIN = """
import argparse, sys
import torch

p = argparse.ArgumentParser()
p.add_argument("--resume")
p.add_argument("--seed", type=int)
p.add_argument("--steps", type=int, default=14)
p.add_argument("--table", type=int, default=1000)
a = p.parse_args()
torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
if a.resume:
    c = torch.load(a.resume)
    model.load_state_dict(c["model"]), optimizer.load_state_dict(c["optimizer"]), g.set_state(c["g"])
    step = c["step"]
if a.seed is not None:
    g.manual_seed(a.seed)
weights = list(range(a.table))
log = open("run/metrics.csv", "a" if a.resume else "w", buffering=1)
if not a.resume:
    print("step,loss", file=log)
try:
    while step < a.steps:
        x = torch.rand(6, 4, generator=g) * (weights[step] >= 0)
        x[2] *= step != 9
        loss = ((model(x) - 1) / x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"{step},{loss.item():.6f}", file=log)
        if step == 5:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "g": g.get_state()}
            torch.save(state, "run/ckpt_5.pt")
    print("trained")
finally:
    torch.save(model.state_dict(), "run/last.pt")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.py and the run that it made: the loss is NaN from step 10 on."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(TRAIN)
    (folder / "run").mkdir()
    assert warm.run("train.py", cwd=folder).returncode == 0
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as working directory."""
    folder = tmp_path / "project"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Name -> (time of change, hash) of every file."""
    files = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {str(p): (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files}


def test_the_command_is_rerun_to_the_culprit(project: Path, postmortem) -> None:
    """Step, tick, line and samples; a cure; the losses are those of the log; nothing of the user's changes."""
    before = contents(project)
    command = [sys.executable, "train.py", "--resume", "run/ckpt_5.pt"]
    called = postmortem("replay", "run", "--format", "json", "--", *command)
    answer = json.loads(called.out)
    assert (called.code, answer["step"], answer["tick"], answer["raised"]) == (1, 10, 4, None), called
    culprit = answer["culprit"]
    line = 1 + next(i for i, text in enumerate(TRAIN.splitlines()) if "keepdim" in text)
    assert (culprit["phase"], culprit["op"], culprit["line"]) == ("forward", "div", line)
    assert Path(culprit["file"]) == project / "train.py"
    (eps,) = [f for f in culprit["fixes"] if f["name"] == "eps"]  # 1 / 1e-6, squared: finite, and no cure
    assert eps["cured"]
    assert eps["loss"] > 1e6
    assert 0 < eps["far_from"] < 10
    assert answer["next"][0].startswith("inspect sample 2 of the batch")  # the step is finite without it
    assert any("far from its course" in each for each in answer["next"][1:])
    fidelity = answer["fidelity"]
    assert (fidelity["ok"], fidelity["first_step"], fidelity["exact"]) == (True, 6, fidelity["compared"])
    assert contents(project) == before


def test_another_order_of_the_data_blames_nobody(project: Path, postmortem) -> None:
    """The rerun fails as well, with other losses before: it is not the failure of the run."""
    command = [sys.executable, "train.py", "--resume", "run/ckpt_5.pt", "--seed", "8"]
    called = postmortem("replay", "run", "--", *command)
    assert called.code == 3
    said = " ".join(called.out.split())
    assert "No culprit: the rerun fails (" in said
    assert "), but not as the run did: no culprit is named." in said
    assert "1. this watches a training from its start, without a resume: $ postmortem run -- COMMAND" in said
    assert "does not follow the log" in said


MEANS = (
    TRAIN.replace("step = 0\n", "step, mean = 0, 1.0\n", 1)
    .replace('step = c["step"]', 'step, mean = c["step"], c["mean"]')
    .replace("        step += 1\n", "        step += 1\n        mean = 0.9 * mean + 0.1 * loss.item()\n")
    .replace("{loss.item():.6f}", "{mean:.6f}")
    .replace('"step": step,', '"step": step, "mean": mean,')
)


@pytest.mark.parametrize("seed", [[], ["--seed", "8"]], ids=["the same data", "other data"])
def test_what_the_rerun_logs_itself_is_compared(project: Path, postmortem, seed: list[str]) -> None:
    """The log holds a running mean, which no backward pass gives: what the rerun logs, beside the run, decides."""
    (project / "train.py").write_text(MEANS)
    assert warm.run("train.py", cwd=project).returncode == 0
    before = contents(project)
    command = [sys.executable, "train.py", "--resume", "run/ckpt_5.pt", *seed]
    called = postmortem("replay", "run", "--format", "json", "--", *command)
    answer = json.loads(called.out)
    fidelity, culprit = answer["fidelity"], answer["culprit"]
    if seed:
        assert (called.code, culprit["phase"], fidelity["ok"]) == (3, "none", False), called
    else:
        assert (called.code, culprit["op"], fidelity["ok"]) == (1, "div", True), called
        assert fidelity["exact"] == fidelity["compared"] == 4
        assert "that the rerun logged itself are those of the log" in fidelity["note"]
    assert contents(project) == before


GUARDED = (
    TRAIN.replace(
        "    while step < a.steps:\n", "    drawn = step - 1\n    while step < a.steps:\n        drawn += 1\n"
    )
    .replace("step != 9", "drawn != 9")
    .replace(
        "        optimizer.zero_grad()",
        "        if not torch.isfinite(loss):\n            continue\n        optimizer.zero_grad()",
    )
)


def test_a_guarded_step_that_the_log_does_not_count(project: Path, postmortem) -> None:
    """The program leaves it out and logs nothing of it: its losses before are those of the log."""
    (project / "train.py").write_text(GUARDED)
    assert warm.run("train.py", cwd=project).returncode == 0
    assert "nan" not in (project / "run" / "metrics.csv").read_text()
    command = [sys.executable, "train.py", "--resume", "run/ckpt_5.pt"]
    called = postmortem("replay", "run", "--no-fix", "--step", "10", "--format", "json", "--", *command)
    answer = json.loads(called.out)
    assert (called.code, answer["tick"], answer["culprit"]["op"]) == (1, 4, "div"), called
    assert (answer["fidelity"]["ok"], answer["fidelity"]["exact"], answer["step"]) == (True, 4, 10)


def test_an_exception_is_no_numerical_fault(project: Path, postmortem) -> None:
    """Its type, and the user's own line."""
    command = [sys.executable, "train.py", "--resume", "run/ckpt_5.pt", "--table", "7"]
    called = postmortem("replay", "run", "--", *command)
    line = 1 + next(i for i, text in enumerate(TRAIN.splitlines()) if "weights[step]" in text)
    assert called.code == 1
    assert f"the program raised IndexError: list index out of range (train.py:{line})" in " ".join(called.out.split())
    assert "No culprit" in called.out


def test_a_healthy_step_is_nobodys_fault(project: Path, postmortem) -> None:
    """The step that was asked for is passed without a fault."""
    command = [sys.executable, "train.py", "--resume", "run/ckpt_5.pt", "--steps", "8"]
    called = postmortem("replay", "run", "--step", "8", "--format", "json", "--", *command)
    answer = json.loads(called.out)
    assert (called.code, answer["culprit"]["phase"], answer["fidelity"]["compared"]) == (0, "none", 3), called


PRINTS = "import sys; print('well'); print('no data', file=sys.stderr); "


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (PRINTS + "raise SystemExit(3)", "the command failed with exit code 3: no data; no process of the command st"),
        (PRINTS + "import os; os.kill(os.getpid(), 9)", "the command failed with signal 9 (SIGKILL): no data; no proc"),
        (PRINTS, "no process of the command stepped an optimizer (python -I, -E, -S,"),
        ("import torch", "no process of the command stepped an optimizer; the command ended with exit code 0"),
    ],
)
def test_a_command_without_an_optimizer(project: Path, postmortem, source: str, said: str) -> None:
    """One line says how the command failed, what was not seen, and why that may be; nothing stays in the cache."""
    isolated = [] if source == "import torch" else ["-I"]
    called = postmortem("replay", "run", "--format", "json", "--", sys.executable, *isolated, "-c", source)
    assert called.code == 2
    answer = json.loads(called.out)
    assert (answer["culprit"]["phase"], answer["fidelity"]["ok"], answer["tick"]) == ("none", False, None)
    assert called.err.startswith(f"postmortem: {said}")
    assert called.err.count("\n") == 1
    assert not list((project.parent / "cache" / "postmortem" / "launches").iterdir())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "raise SystemExit(3)",
            "the command failed with exit code 3; no process of the command stepped an optimizer (",
        ),
        ("print('done')", "no process of the command stepped an optimizer (python -I, "),
    ],
)
def test_nothing_to_watch(project: Path, postmortem, source: str, said: str) -> None:
    """The same of a watched command: its exit code leads where it failed, and stays its own."""
    called = postmortem("run", "--", sys.executable, "-I", "-c", source)
    assert called.code == (3 if "3" in source else 0)
    assert f"postmortem: {said}" in called.err


def test_options_of_a_recipe_are_not_for_a_command(project: Path, postmortem) -> None:
    """The command itself decides which checkpoint and which device."""
    called = postmortem("replay", "run", "--checkpoint", "run/ckpt_5.pt", "--", sys.executable, "train.py")
    assert (called.code, called.out) == (2, "")
    assert "--checkpoint applies only to a replay with a recipe" in called.err


@pytest.mark.parametrize("on_fault", ["stop", "skip"])
def test_a_training_is_watched(project: Path, postmortem, on_fault: str) -> None:
    """It ends, or goes on without the update; its stdout is apart from ours; the answer is kept in a folder."""
    shutil.rmtree(project / "run")
    (project / "run").mkdir()
    called = postmortem("run", "--on-fault", on_fault, "--format", "json", "--", sys.executable, "train.py")
    answer, stop = json.loads(called.out), on_fault == "stop"
    assert called.code == (1 if stop else 0), called.err
    assert (answer["tick"], answer["step"]) == (9, 10)  # as the log that it wrote counts
    assert (answer["culprit"]["phase"], answer["culprit"]["op"]) == ("forward", "div")
    assert "Fidelity: the program itself was watched, and its step was repeated bit for bit" in called.err
    (kept,) = (project / "postmortem-report").glob("*/culprit.json")
    end = called.err.splitlines()[-2:]
    assert end[0].startswith("postmortem: culprit: train.py:")
    assert "(div), step " in end[0]
    assert end[1] == f"postmortem: the report is in {kept.with_suffix('.txt').relative_to(project)}"
    assert json.loads(kept.read_text())["tick"] == 9
    assert (project / "run" / "last.pt").exists() is not stop
    if not stop:
        import torch

        assert len((project / "run" / "metrics.csv").read_text().splitlines()) == 1 + 14
        assert all(bool(t.isfinite().all()) for t in torch.load(project / "run" / "last.pt").values())
        (report,) = api.scan("run").runs
        (capture,) = (project / "postmortem-report" / "captures").glob("*")
        again = f"postmortem replay {capture.relative_to(project)} -- {sys.executable} train.py"
        assert report.diagnosis.next[0] == again  # no checkpoint is needed
