"""A copy finds the files of the program as they were when it was forked."""

from __future__ import annotations

import builtins
import io
import json
import os
import pickle
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from postmortem.attach.standby.journal import Journal, Past
from tests import warm

linux = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")

PROGRAM = """
import json, os, shutil, sys
from pathlib import Path
from postmortem.attach.standby import files
from postmortem.attach.standby.journal import Journal

def seen():
    return {
        "there": sorted(str(p) for p in Path(".").rglob("*")),
        "listed": sorted(os.listdir(".")),
        "scanned": sorted(e.name for e in os.scandir(".")),
        "exists": [os.path.exists(p) for p in ("log.csv", "ckpt_1", "ckpt_1/model", "best", "new", "gone")],
        "access": os.access("ckpt_1", os.F_OK),
        "log": open("log.csv").read(),
        "best": Path("best").read_text(),
        "size": os.path.getsize("log.csv"),
    }

Path("log.csv").write_text("a,b\\n1,2\\n")
Path("best").write_text("old")
Path("gone").write_text("here")
journal = Journal()
journal.begin()
before = seen()
with open("log.csv", "a") as log:
    log.write("3,4\\n")
os.makedirs("ckpt_1/shards")
Path("ckpt_1/model").write_bytes(b"1" * 10)
Path("part").write_text("new one")
os.replace("part", "best")
os.remove("gone")
files.keep_in_memory(journal.before)
after = seen()
os.makedirs("ckpt_1")
with open("ckpt_1/model", "x") as file:
    file.write("again")
with open("log.csv", "a") as log:
    log.write("5,6\\n")
then = {"log": open("log.csv").read(), "model": open("ckpt_1/model").read(), "there": os.path.isdir("ckpt_1")}
try:
    open("part")
except FileNotFoundError as error:
    then["error"] = error.filename
json.dump({"before": before, "after": after, "then": then}, sys.stdout)
"""


@linux
def test_a_copy_sees_the_disk_as_it_was(tmp_path: Path) -> None:
    """Folders and files made since are hidden, what was written over, added to or removed is as it was."""
    done = warm.run("-c", PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {**told["after"], "exists": told["before"]["exists"]} == {
        **told["before"],
        "there": [name for name in told["before"]["there"] if name != "gone"],  # it is not listed, but can be opened
        "listed": [name for name in told["before"]["listed"] if name != "gone"],
        "scanned": [name for name in told["before"]["scanned"] if name != "gone"],
    }
    assert told["after"]["exists"] == [True, False, False, True, False, True]
    assert told["then"] == {
        "log": "a,b\n1,2\n5,6\n",
        "model": "again",
        "there": True,
        "error": str(tmp_path.resolve() / "part"),
    }
    assert (tmp_path / "log.csv").read_text() == "a,b\n1,2\n3,4\n"


CHANGED = ("open", "mkdir", "remove", "unlink", "truncate", "link", "symlink", "rename", "replace")


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal replaces functions for as long as its process lives: here they come back."""
    for owner, names in ((os, CHANGED), (io, ("open",)), (builtins, ("open",))):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.usefixtures("restored")
def test_functions_that_write_can_be_pickled() -> None:
    """By the names under which a program knows them."""
    Journal().begin()
    for function in (open, *(getattr(os, name) for name in CHANGED)):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.usefixtures("restored")
def test_what_is_only_read_is_not_noted(tmp_path: Path) -> None:
    """Nor what lies in a folder that is not there."""
    journal = Journal()
    (tmp_path / "data").write_text("x")
    journal.begin()
    (tmp_path / "data").read_text()
    with pytest.raises(FileNotFoundError):
        os.mkdir(tmp_path / "no" / "where")
    assert journal.before == {str(tmp_path / "no" / "where"): None}
    assert Past(journal.before).hides(str(tmp_path / "no" / "where" / "inside"))
    assert not Past(journal.before).hides(str(tmp_path / "data"))
    journal.begin()
    assert journal.before == {}


@pytest.mark.usefixtures("restored")
def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may write over many files, and add to a log of gigabytes, which a copy must not hold in memory."""
    monkeypatch.setattr("postmortem.attach.standby.journal._MOST", 10)
    for name in ("a", "b", "log"):
        (tmp_path / name).write_text("12345678")
    journal = Journal()
    journal.begin()
    for name in ("a", "b"):
        (tmp_path / name).write_text("new")
    assert journal.before == {str(tmp_path / "a"): b"12345678"}
    assert Past({str(tmp_path / "log"): 8}).contents(str(tmp_path / "log")) == b"12345678"
    assert Past({str(tmp_path / "log"): 11}).contents(str(tmp_path / "log")) is None


REFUSES = """
    import os, torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(12):
        x = torch.rand(8, 4) + 0.1
        if step == 9:
            x[3] = 0
        loss = (net(x) ** 2).mean() + (x.sum(1) / x.sum(1)).mean()  # here
        opt.zero_grad()
        loss.backward()
        opt.step()
        folder = f"checkpoint_{step}"
        if os.path.exists(folder):
            raise ValueError(f"{folder} already exists")
        os.makedirs(folder)
        torch.save(net.state_dict(), os.path.join(folder, "model.pt"))
"""


@linux
def test_a_program_that_refuses_to_save_twice(tmp_path: Path) -> None:
    """The steps since the fork are repeated, with their checkpoints, which the program itself has written already."""
    (tmp_path / "train.py").write_text(textwrap.dedent(REFUSES))
    answer = tmp_path / "answer.json"
    watched = Path(__file__).parent / "watched.py"
    done = warm.run(str(watched), str(answer), "6", "train.py", cwd=tmp_path)
    assert answer.exists(), done.stderr
    found = json.loads(answer.read_text())["found"]
    assert found["repeated"], found
    assert (found["culprit"]["op"], found["culprit"]["samples"]) == ("div", [3])
