"""What a copy shares with the program that was forked, and must not: places in files, memory, handlers of signals."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests import warm

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

WATCHED = Path(__file__).parent / "watched.py"


def watched(folder: Path, source: str) -> dict[str, Any]:
    """The answer about a training with this source; a copy was taken before its first tick only."""
    (folder / "train.py").write_text(textwrap.dedent(source))
    answer = folder / "answer.json"
    done = warm.run(str(WATCHED), str(answer), "1000", "train.py", cwd=folder)
    assert answer.exists(), done.stderr
    found: dict[str, Any] = json.loads(answer.read_text())["found"]
    return found


READS_ON = """
    import mmap, os, signal, struct, torch

    torch.manual_seed(0)
    with open("data.bin", "wb") as out:
        out.write(b"".join(struct.pack("f", 0.0 if i == 5 else 1.0 + i) for i in range(9)))
    data = open("data.bin", "rb", buffering=0)     # read in order, without a DataLoader
    seen = mmap.mmap(-1, 8)                        # shared, as the batch of a worker
    log = open("log.txt", "a")
    signal.signal(signal.SIGUSR1, lambda *_: (log.write("saved\\n"), log.flush()))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(9):
        x = torch.tensor(struct.unpack("f", data.read(4)))
        count = struct.unpack("q", seen[:])[0]
        seen[:] = struct.pack("q", count + 1)
        if step == 2:
            os.killpg(0, signal.SIGUSR1) if SIGNAL else None
        loss = (x * x.log()).sum() * model(x[None]).sum()  # here
        loss = loss * (1.0 if count == step else float("inf"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(f"step {step}\\n")
        log.flush()
"""


def test_a_file_that_is_read_in_order_is_read_again(tmp_path):
    found = watched(tmp_path, READS_ON.replace("SIGNAL", "False"))
    assert found["repeated"] is True, found
    assert found["culprit"]["op"] in ("log", "mul")
    assert found["culprit"]["line"] == 1 + next(
        i for i, line in enumerate((tmp_path / "train.py").read_text().splitlines()) if "# here" in line
    )
    assert (tmp_path / "log.txt").read_text().splitlines() == [f"step {step}" for step in range(5)]


def test_a_signal_to_the_group_is_handled_once(tmp_path):
    """The end of a job: the program saves, the copy ends."""
    watched_by_group = READS_ON.replace("SIGNAL", "True")
    with pytest.raises(KeyError):  # the copy is gone, nothing is examined
        watched(tmp_path, watched_by_group)["culprit"]
    assert (tmp_path / "log.txt").read_text().splitlines().count("saved") == 1


WORKERS = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(9):
        if step == 2:
            print(list(DataLoader(range(4), num_workers=1)))  # an evaluation
        loss = (model(torch.ones(1)) / (step != 5)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_worker_that_ends_leaves_the_copy_alone(tmp_path):
    """A forked worker inherits what watches the program, and tells it that it has ended."""
    found = watched(tmp_path, WORKERS)
    assert (found["tick"], found["repeated"], found["culprit"]["op"]) == (5, True, "div")


DRAWS = """
    import random, torch

    random.seed(3)
    kept = []
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(20):
        kept.append(random.random() if step != 9 else 0.0)
        x = torch.tensor(random.sample(kept, min(len(kept), 4)))
        loss = (model(x[:, None]).squeeze(1) / x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_random_numbers_of_python_go_on(tmp_path):
    """Python seeds `random` anew in a process that was forked; a copy draws what the program drew."""
    found = watched(tmp_path, DRAWS)
    assert (found["repeated"], found["culprit"]["op"], found["attempts"] > 2) == (True, "div", True), found
