"""Commands from which nothing follows for a run: a spoiled checkpoint, a wrong path, another setting."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch")

from postmortem.attach.answers import Answers
from postmortem.attach.missing import check_given_paths
from postmortem.core.errors import ReplayError

pytestmark = pytest.mark.torch

TRAIN = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = 0
if len(sys.argv) > 1:
    saved = torch.load(sys.argv[1].removeprefix("--from="))
    model.load_state_dict(saved["model"])
    start = saved["step"] + 1
for step in range(start, 12):
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(step))
    if step == 6:
        x[2, 0] = 0
    loss = (model(x.log()) - 1).abs().sqrt().mean() if step == 6 else (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    if step % 4 == 0:
        torch.save({"model": model.state_dict(), "step": step}, f"ckpt_{step}.pt")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose loss is not finite from step 6 on, in the working directory; ckpt_8.pt holds NaN."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train()
    return tmp_path


def train() -> None:
    """Makes the run in the working directory."""
    done = warm.run("train.py")
    assert done.returncode == 0, done.stderr
    Path("train.log").write_text(done.stdout)


@pytest.mark.parametrize("words", [["ckpt_8.pt"], ["--from=ckpt_8.pt"]])
def test_a_checkpoint_that_holds_nan(project: Path, postmortem, words: list[str]) -> None:
    """The checkpoint is what is named, and no step or line; the command is given with one that is whole."""
    called = postmortem("replay", ".", "--format", "json", "--", sys.executable, "train.py", *words)
    answer = json.loads(called.out)
    culprit, fidelity = answer["culprit"], answer["fidelity"]
    assert (called.code, culprit["cause"], culprit["line"], answer["step"]) == (1, "bad-parameter", None, None), called
    assert culprit["tensor"] == {"checkpoint": "ckpt_8.pt", "non_finite": ["model.weight", "model.bias"]}
    assert (fidelity["ok"], fidelity["compared"]) == (False, 0)
    whole = " ".join(words).replace("ckpt_8.pt", "ckpt_4.pt")
    assert answer["next"][0].endswith(f"`postmortem replay . -- {sys.executable} train.py {whole}`")


def test_how_it_is_told(project: Path, postmortem) -> None:
    """In words, which do not call the rerun one that follows the log."""
    called = postmortem("replay", ".", "--", sys.executable, "train.py", "ckpt_8.pt")
    said = " ".join(called.out.split())
    assert "Culprit: ckpt_8.pt already holds non-finite values in model.weight, model.bias" in said
    assert "nothing after it can be judged" in said
    assert "Fidelity: unknown. " in said
    assert "follows the log" not in said


def test_a_whole_checkpoint_is_not_blamed(project: Path, postmortem) -> None:
    """The same command from before the failure finds it; a step that was asked for and not reached is mentioned."""
    called = postmortem("replay", ".", "--no-fix", "--step", "99", "--", sys.executable, "train.py", "ckpt_4.pt")
    assert called.code == 1
    assert "Step 99 was requested, this is about step 6" in called.out
    assert "holds non-finite" not in called.out
    assert "Fidelity: good" in called.out


def test_a_path_that_does_not_exist(project: Path, postmortem) -> None:
    """The command failed, not the run: exit code 2 and one line with the exception."""
    called = postmortem("replay", ".", "--format", "json", "--", sys.executable, "train.py", "no.pt")
    assert called.code == 2
    said = "postmortem: the command failed before its first training step: FileNotFoundError: "
    assert called.err.startswith(said)
    assert called.err.rstrip().endswith("(train.py:10)")
    assert called.err.count("\n") == 1
    assert json.loads(called.out)["raised"]["type"] == "FileNotFoundError"


def test_the_exception_of_the_run_itself(project: Path, postmortem) -> None:
    """A rerun that raises what the run raised is an answer, also before a first step."""
    with (project / "train.log").open("a") as log:
        log.write("Traceback (most recent call last):\n")
        log.write('  File "train.py", line 11, in <module>\n    saved = torch.load(sys.argv[1])\n')
        log.write("FileNotFoundError: [Errno 2] No such file or directory: 'no.pt'\n")
    called = postmortem("replay", ".", "--", sys.executable, "train.py", "no.pt")
    assert called.code == 1
    assert "the program raised FileNotFoundError" in called.out


def test_a_setting_that_differs_is_the_first_reason(project: Path, postmortem) -> None:
    """Known from what both print before their first step; the first loss alone is no log that is followed."""
    source = TRAIN.replace("lr=0.01)", "lr=float(sys.argv[2]) if len(sys.argv) > 2 else 0.01)")
    source = source.replace("start = 0", 'start = 0\nprint("lr =", optimizer.param_groups[0]["lr"], flush=True)', 1)
    (project / "train.py").write_text(source.replace("step == 6", "step == 10"))
    train()
    called = postmortem("replay", ".", "--format", "json", "--", sys.executable, "train.py", "ckpt_4.pt", "0.3")
    fidelity = json.loads(called.out)["fidelity"]
    assert (called.code, fidelity["ok"]) == (3, False), called
    assert fidelity["reasons"][0] == "another configuration: lr is 0.3 in the rerun and 0.01 in the run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume", "{here}/ckpt_3.pt"], "ckpt_3.pt: no such file or folder, for --resume; did you mean"),
        (["--load_from={here}/ckpt_3.pt"], "no such file or folder, for --load_from"),
        (["--resume", "{here}/ckpt_4.pt"], ""),
        (["--resume", "ckpt_3.pt"], ""),  # the program may know its folder
        (["--out", "{here}/new.pt"], ""),
    ],
)
def test_a_checkpoint_that_is_not_there_is_told_before_the_start(tmp_path: Path, words: list[str], said: str) -> None:
    """Nothing has to be started to know that."""
    (tmp_path / "ckpt_4.pt").touch()
    command = ["python", "-m", "train", *(word.format(here=tmp_path) for word in words)]
    if not said:
        check_given_paths(command)
        return
    with pytest.raises(ReplayError, match=re.escape(said)):
        check_given_paths(command)


def test_a_script_that_is_not_there_is_told_before_the_start(tmp_path: Path) -> None:
    """With the one that is meant; a module or a line of code is no file, and a launcher knows its own paths."""
    (tmp_path / "train.py").touch()
    with pytest.raises(ReplayError, match=r"trian\.py: no such file or folder, for python to run; did you mean"):
        check_given_paths(["python", "-u", str(tmp_path / "trian.py"), "--lr", "1"])
    check_given_paths(["python", str(tmp_path / "train.py")])
    check_given_paths(["python", "-m", "train.py"])
    check_given_paths(["torchrun", "train.py"])


def test_a_python_without_a_module_is_named(tmp_path: Path) -> None:
    """Which one it is, as it is likely not the one that was meant; what keeps out a watch has nothing to do with it."""
    answers = Answers(tmp_path)
    said = answers.unseen(1, "ModuleNotFoundError: No module named 'torch'", ["python3", "train.py"])
    assert f"python3 is {shutil.which('python3')}, which has no torch" in said
    assert "container" not in said
    said = answers.unseen(1, "ModuleNotFoundError: No module named 'torch'", ["bash", "train.sh"])
    assert "the Python that ran it has no torch" in said
    assert "container" not in answers.unseen(2, "python: can't open file 'x.py': [Errno 2] No such file", ["bash", "x"])
    assert "if it trained: python -I" in answers.unseen(1, "ValueError: no", ["bash", "x"])
    assert "(python -I" in answers.unseen(0, "done", ["bash", "x"])
