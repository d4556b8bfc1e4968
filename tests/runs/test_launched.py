"""The command that started a run is read from its files, and adapted to resume where its script shows how."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.core.launched import own_command
from postmortem.runs.launched import _call

ROWS = "".join(f"step {k} | loss {3 / (k + 1):.4f}\n" for k in range(60))
SCRIPT = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--out-dir", default="out")
p.add_argument("--fast", action="store_true")
p.add_argument("--resume", help="checkpoint to go on from")
"""


def run_of(folder, head="", files=None, rows=ROWS):
    folder.mkdir(exist_ok=True)
    (folder / "train.log").write_text(head + rows)
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return postmortem.load(folder)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("+ python train.py --lr 0.3\n", "python train.py --lr 0.3"),
        ("++ python3 -u train.py --name 'two words'\n", "python3 -u train.py --name 'two words'"),
        ("$ torchrun --nproc-per-node 8 train.py --lr 1e-3 2>&1 | tee train.log\n", None),
        ("user@node:~/exp$ CUDA_VISIBLE_DEVICES=0 python train.py\n", "env CUDA_VISIBLE_DEVICES=0 python train.py"),
        ("+ srun --ntasks=2 python -m pkg.train --lr 3\n", "python -m pkg.train --lr 3"),
        ("+ /no/such/bin/python train.py\n", "python train.py"),
        ("sys.argv: ['train.py', '--lr', '3']\n", "python train.py --lr 3"),
        ("Command: accelerate launch --num_processes 2 train.py\n", "accelerate launch --num_processes 2 train.py"),
        ("+ python prepare.py\n+ python train.py\n+ python train.py --again\n", "python train.py --again"),
    ],
)
def test_command_of_a_log(tmp_path, head, words):
    """What `set -x`, a prompt or the program prints of the command, without pipes and without what a cluster needs."""
    found = run_of(tmp_path, head).launched
    assert found is not None
    expected = "torchrun --nproc-per-node 8 train.py --lr 1e-3" if words is None else words
    assert shlex.join(found.words) == shlex.join(shlex.split(expected))
    assert found.source.endswith("train.log")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "python train.py --resume FILE goes on from a checkpoint\n",
        "+ python train_a.py\n+ python train_b.py\n",
        "+ python 'train.py\n",
        "+ echo python train.py\n",
        "argv: [1, 2\n",
        "Namespace(lr=<object at 0x7f>)\n",
    ],
)
def test_command_that_is_not_known(tmp_path, head):
    """Prose, one of two trainings, an open quotation: no command is made up."""
    assert run_of(tmp_path, head).launched is None


def test_job_script(tmp_path):
    """A call in a Slurm script counts, over continued lines; one with variables does not."""
    job = "#!/bin/bash\n#SBATCH --mem=2G\npython train.py \\\n  --lr 0.5  # slow\n"
    found = run_of(tmp_path / "a", files={"job.sh": job}).launched
    assert found is not None
    assert found.words == ("python", "train.py", "--lr", "0.5")
    assert run_of(tmp_path / "b", files={"job.sh": job.replace("0.5", "$LR")}).launched is None


def test_metadata_of_wandb(tmp_path):
    """W&B's metadata holds program and arguments; of an absolute program that is gone, its path in the repository."""
    said = {"program": "/gone/exp/src/train.py", "codePath": "src/train.py", "args": ["--lr", "2"]}
    found = run_of(tmp_path, files={"files/wandb-metadata.json": json.dumps(said)}).launched
    assert found is not None
    assert found.words == ("python", "src/train.py", "--lr", "2")
    assert run_of(tmp_path / "b", files={"wandb-metadata.json": "[1]"}).launched is None


def test_namespace(tmp_path):
    """Parsed arguments are spelled by the options of the one script that has them: defaults are left out."""
    head = "Namespace(lr=0.5, out_dir='out', fast=True, resume=None)\n"
    found = run_of(tmp_path, head, {"train.py": SCRIPT, "other.py": "x = 1"}).launched
    assert found is not None
    assert found.words == ("python", "train.py", "--lr", "0.5", "--fast")
    assert run_of(tmp_path / "b", head, {"a.py": SCRIPT, "b.py": SCRIPT}).launched is None


@pytest.mark.parametrize(
    ("script", "given_words", "expected"),
    [
        (SCRIPT, "", "train.py --resume a.pt"),
        (SCRIPT, "--resume old.pt --lr 1", "train.py --lr 1 --resume a.pt"),
        (SCRIPT, "--resume=old.pt", "train.py --resume a.pt"),
        (SCRIPT.replace('"--resume", help', '"--from", dest="x", help'), "", "train.py --from a.pt"),
        (SCRIPT.replace('"--resume", help', '"--resume", action="store_true", help'), "", "train.py RESUME_FROM a.pt"),
        ("from options import parser", "", "train.py --resume a.pt"),
        ("from transformers import HfArgumentParser\nresume_from_checkpoint", "", None),
        ("from lightning.pytorch.cli import LightningCLI", "fit -c a.yaml", "train.py fit -c a.yaml --ckpt_path a.pt"),
        ("import hydra\n@hydra.main()\ndef main(c): pass", "", "train.py RESUME_FROM a.pt"),
        ("syntax error(", "", "train.py RESUME_FROM a.pt"),
    ],
)
def test_resume_as_the_script_shows(tmp_path, monkeypatch, script, given_words, expected):
    """The option by which a script resumes is read from it; what it was given is replaced; else a placeholder."""
    monkeypatch.chdir(tmp_path)
    head = f"+ python train.py {given_words}\n"
    (tmp_path / "runs").mkdir()
    run_of(tmp_path / "runs" / "a", head)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "options.py").write_text(SCRIPT)
    run = postmortem.load("runs/a")
    expected = expected or "train.py --resume_from_checkpoint a.pt"
    assert own_command(run.path, run.launched, "a.pt") == f"postmortem replay runs/a -- python {expected}"


def test_script_in_the_folder_of_the_run(tmp_path, monkeypatch):
    """A script that lies with the run, and not here, is started there; paths are those seen from there."""
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / "a b", "+ python train.py\n", {"train.py": SCRIPT})
    run = postmortem.load("a b")
    line = own_command(run.path, run.launched, "a b/ck.pt")
    assert line == "(cd 'a b' && postmortem replay . -- python train.py --resume ck.pt)"


def test_next_of_a_failed_run(postmortem, tmp_path, monkeypatch):
    """The scan of a failed run ends with the line to type; a recipe alone, without a checkpoint, makes no other one."""
    monkeypatch.chdir(tmp_path)
    rows = ROWS + "".join(f"step {k} | loss nan\n" for k in range(60, 80))
    run_of(tmp_path / "a", "+ python train.py\n", {"train.py": SCRIPT}, rows)
    called = postmortem("scan", "a")
    assert "$ (cd a && postmortem replay . -- python train.py)\n" in called.out
    (tmp_path / "a" / "recipe.py").write_text("")
    assert "$ (cd a && postmortem replay . -- python train.py)\n" in postmortem("scan", "a").out


@pytest.mark.torch
def test_replay_without_a_recipe_names_the_ways(postmortem, tmp_path, monkeypatch):
    """One line with what to type; where no command is known, what stands for it."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    rows = ROWS + "".join(f"step {k} | loss nan\n" for k in range(60, 80))
    run_of(tmp_path / "a", "+ python train.py\n", {"train.py": SCRIPT}, rows)
    told = postmortem("replay", "a")
    assert told.code == 2
    assert told.err.count("\n") == 1
    assert "`(cd a && postmortem replay . -- python train.py)`" in told.err
    run_of(tmp_path / "b", rows=rows)
    told = postmortem("replay", "b")
    assert "no checkpoint to replay from: `postmortem run -- python train.py …` trains again under watch" in told.err
    assert told.err.count("\n") == 1
    assert "or write a recipe of the initial state, of which `postmortem recipe b` makes a draft" in told.err
    run_of(tmp_path / "long", rows="".join(f"step {k}00 | loss {2.0 if k < 60 else 'nan'}\n" for k in range(80)))
    told = postmortem("replay", "long")
    assert "or write a recipe for a checkpoint of it, of which `postmortem recipe long --checkpoint FILE`" in told.err
    (tmp_path / "b" / "ckpt_30.pt").write_bytes(b"")
    told = postmortem("replay", "b")
    assert "`postmortem replay b -- COMMAND` reruns the training command" in told.err
    assert "`postmortem recipe b` makes a draft" in told.err


TRAINING = SCRIPT + "loss.backward()\n"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"train.py": TRAINING, "data.py": ""}, "(cd a && postmortem replay . -- python train.py --resume ck.pt)"),
        ({"fit.py": "trainer.fit(model)\n"}, "(cd a && postmortem replay . -- python fit.py RESUME_FROM ck.pt)"),
        ({"recipe.py": TRAINING, "data.py": ""}, None),
        ({"train_a.py": TRAINING, "train_b.py": TRAINING}, None),
    ],
)
def test_only_script_of_a_folder(tmp_path, monkeypatch, files, line):
    """Where no file holds the command, the one script that trains is called; where there are two, none."""
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path / "a", files=files)
    run = postmortem.load("a")
    assert run.launched is None
    assert own_command(run.path, run.script, "a/ck.pt") == line


def test_script_in_a_folder_of_several_runs(tmp_path):
    """Nobody knows which run it made."""
    (tmp_path / "train.py").write_text(TRAINING)
    run_of(tmp_path / "a")
    (tmp_path / "b.log").write_text(ROWS)
    report = postmortem.scan(tmp_path)
    assert [r.run.script for r in report.runs] == [None, None]


@given(st.text(max_size=80))
def test_any_line_is_a_command_or_none(line):
    """No text raises, and a command has a launcher and a script."""
    call = _call(f"python {line}", "log")
    assert call is None or (len(call.words) >= 2 and call.script)


@pytest.mark.torch
def test_replay_of_a_run_without_a_fault_says_so(postmortem, tmp_path, monkeypatch):
    """No step of it is known to fail: nothing is said of the failing step, and --step is named."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / "a")
    told = postmortem("replay", "a")
    assert told.code == 2
    assert told.err.startswith("postmortem: the log of a shows no fault, so that no step is known to fail")
    assert "`postmortem replay a --step N -- COMMAND` reruns" in told.err
    assert "failing step" not in told.err
    assert "no fault" not in postmortem("replay", "a", "--step", "20").err
