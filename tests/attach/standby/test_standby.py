"""A copy of the process repeats the step that broke, and names the culprit: programs that nobody described."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests import warm

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

WATCHED = Path(__file__).parent / "watched.py"


def watched(folder: Path, source: str, *, every: int | str = 2) -> dict[str, Any]:
    """The answer about a training with this source."""
    (folder / "train.py").write_text(textwrap.dedent(source))
    answer = folder / "answer.json"
    done = warm.run(str(WATCHED), str(answer), str(every), "train.py", cwd=folder)
    assert answer.exists(), done.stderr
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def processes_of(folder: Path) -> list[int]:
    """Those whose working directory it is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
    return found


def line_of(folder: Path, text: str) -> int:
    """The line of the training that holds this text."""
    lines = (folder / "train.py").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


ACCUMULATING = """
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.out = nn.Linear(4, 1)

        def forward(self, words, weight):
            score = self.out(self.table(words)).squeeze(-1)
            return ((score ** 2 * weight).sum(1) / weight.sum(1)).mean()  # here

    torch.manual_seed(0)
    tagger = Tagger()
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=0.01)
    log = open("log.txt", "a", buffering=1)
    try:
        for step in range(8):
            optimizer.zero_grad()
            for micro in range(3):
                words = torch.randint(9, (4, 5))
                weight = torch.ones(4, 5)
                if step == 5 and micro == 1:
                    weight = weight.index_fill(0, torch.tensor([2]), 0.0)
                loss = tagger(words, weight) / 3
                print(step, micro, loss.item(), file=log)
                loss.backward()
            torch.save(tagger.state_dict(), "last.pt")
            optimizer.step()
    finally:
        torch.save({}, "ended.pt")
"""


def test_data_that_the_script_draws_itself(tmp_path: Path) -> None:
    """Line, micro-batch, sample and cure, without a loader; the attempts write no log and no checkpoint."""
    (tmp_path / "log.txt").write_text("before\n")
    answer = watched(tmp_path, ACCUMULATING)
    found, culprit = answer["found"], answer["found"]["culprit"]
    assert (answer["tick"], answer["kind"], found["repeated"], found["micro_batch"]) == (5, "loss", True, 1)
    assert (culprit["phase"], culprit["op"], culprit["module"]) == ("forward", "div", "")
    assert (Path(culprit["file"]).name, culprit["line"]) == ("train.py", line_of(tmp_path, "# here"))
    assert culprit["samples"] == [4 + 2]
    cured = {f["name"] for f in culprit["fixes"] if f["cured"]}
    assert cured == {"drop_sample", "eps"}
    assert "clamp(min=1e-06)" in culprit["suggestion"]
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 1 + 5 * 3 + 2
    assert not (tmp_path / "ended.pt").exists()


def test_without_a_fork(tmp_path: Path) -> None:
    """As on a GPU: the second run traces the tick that the first one told. Named, and no cure is claimed."""
    (tmp_path / "log.txt").write_text("")
    first = watched(tmp_path, ACCUMULATING, every="armed")
    assert first["found"] is None
    answer = watched(tmp_path, ACCUMULATING, every="armed")
    culprit = answer["found"]["culprit"]
    assert (culprit["phase"], culprit["op"], culprit["module"]) == ("forward", "div", "")
    assert (culprit["line"], culprit["samples"]) == (line_of(tmp_path, "# here"), [4 + 2])
    assert (culprit["established"], culprit["fixes"], culprit["precision_only"]) == ("observed", [], None)
    assert answer["found"]["micro_batch"] == 1


LOADING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            x = torch.randn(3)
            if i == 37:
                x[1] = 1e30
            return {"x": x, "y": torch.tensor(float(i))}

    if __name__ == "__main__":
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Dropout(0.2))
        scale = nn.Linear(3, 1)
        optimizer = torch.optim.SGD([*net.parameters(), *scale.parameters()], lr=1e-4)
        loader = DataLoader(Rows(), batch_size=8, num_workers=WORKERS, shuffle=True)
        for epoch in range(2):
            for batch in loader:
                loss = ((net(batch["x"]) + scale(batch["x"]) ** 2 - batch["y"][:, None]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader(tmp_path: Path, workers: int) -> None:
    """What workers gave since the fork is handed over: the step is repeated bit for bit, the sample found."""
    answer = watched(tmp_path, LOADING.replace("WORKERS", str(workers)), every=3)
    found, culprit = answer["found"], answer["found"]["culprit"]
    assert found["repeated"], culprit["how"]
    assert culprit["samples"] is not None
    assert len(culprit["samples"]) == 1
    assert (culprit["phase"], culprit["cause"]) == ("data", "bad-input")
    assert {"drop_sample", "sanitize_input"} <= {f["name"] for f in culprit["fixes"] if f["cured"]}


def test_data_of_lists_and_slices_and_a_database(tmp_path: Path) -> None:
    """What `torch.tensor` makes of a list, and a part of a tensor that holds all data, are samples; an attempt that
    writes to a database goes on, and the file has the rows of the program alone."""
    answer = watched(
        tmp_path,
        """
        import sqlite3
        import torch
        torch.manual_seed(0)
        data = torch.rand(48, 3) + 0.5
        data[43] = 0.0
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        db = sqlite3.connect("metrics.db")
        db.execute("create table train (step integer, loss real)")
        for step in range(6):
            x = data[step * 8:step * 8 + 8]
            y = torch.tensor([0.5 * k for k in range(len(x))])
            loss = ((net(x).squeeze(1) - y) / x.sum(1)).square().mean()  # here
            db.execute("update train set loss = 0")
            db.execute("insert into train values (?, ?)", (step, loss.item()))
            db.commit()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    )
    found, culprit = answer["found"], answer["found"]["culprit"]
    assert (answer["tick"], found["repeated"], culprit["samples"]) == (5, True, [3]), culprit["how"]
    assert (culprit["op"], culprit["line"]) == ("div", line_of(tmp_path, "# here"))
    assert "drop_sample" not in {f["name"] for f in culprit["fixes"] if not f["cured"]}
    with sqlite3.connect(tmp_path / "metrics.db") as db:
        assert db.execute("select count(*) from train").fetchone() == (6,)


def test_a_step_that_the_program_leaves_out(tmp_path: Path) -> None:
    """A loss that is read and not used, in the first tick of all: the copy was forked when the optimizer was made."""
    answer = watched(
        tmp_path,
        """
        import math, sys, queue, threading
        import torch

        events = queue.Queue(2)
        def writes():
            while True:
                events.get(), events.task_done()
        threading.Thread(target=writes, daemon=True).start()
        x = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        optimizer = torch.optim.Adam([x])
        for step in range(3):
            loss = torch.log(x * torch.tensor([[1.0, -1.0], [1.0, 1.0]])).sum()
            for _ in range(5):
                events.put(loss.item())
            events.join()
            if not math.isfinite(loss.item()):
                sys.exit("stopped")
            loss.backward()
            optimizer.step()
        """,
    )
    found = answer["found"]
    assert (answer["kind"], answer["tick"], found["repeated"]) == ("skipped-loss", 0, True)
    assert (found["culprit"]["phase"], found["culprit"]["op"]) == ("forward", "log")


def test_a_program_that_raises_over_data_written_in_place(tmp_path: Path) -> None:
    """What refused the NaN is not at fault; a sample is replaced in a tensor of which the script wrote a part."""
    answer = watched(
        tmp_path,
        """
        import torch
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3)
        optimizer = torch.optim.Adam(layer.parameters())
        for step in range(6):
            seen = torch.randn(8, 4)
            if step == 4:
                seen[2] = 0
            logits = torch.log(seen.abs().sum(-1, keepdim=True)) + layer(seen)  # here
            choice = torch.distributions.Categorical(logits=logits)
            loss = -choice.log_prob(choice.sample()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    )
    culprit = answer["found"]["culprit"]
    assert (answer["kind"], answer["tick"], answer["found"]["repeated"]) == ("raised", 4, True)
    assert (culprit["phase"], culprit["op"], culprit["line"]) == ("forward", "log", line_of(tmp_path, "# here"))
    assert (culprit["samples"], culprit["established"]) == ([2], "cured")


def test_an_update_that_fails(tmp_path: Path) -> None:
    """The parameters are non-finite after a finite loss: the optimizer's own division."""
    answer = watched(
        tmp_path,
        """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        net.bias.data.zero_()
        optimizer = torch.optim.Adam(net.parameters(), eps=0.0, lr=0.01)
        for step in range(4):
            optimizer.zero_grad()
            out = net(torch.randn(6, 3))
            (out[:, :1] if step < 2 else out[:, 1:] * 0 + out[:, :1]).square().mean().backward()
            if step == 2:
                optimizer.state.clear()
            optimizer.step()
        """,
        every=1,
    )
    culprit = answer["found"]["culprit"]
    assert (answer["kind"], culprit["phase"], culprit["op"]) == ("parameter", "optimizer", "addcdiv")
    assert "eps" in {f["name"] for f in culprit["fixes"] if f["cured"]}


def test_what_does_not_come_back_is_nobodys_fault(tmp_path: Path) -> None:
    """A step that is finite, or has other losses, when it is repeated."""
    answer = watched(
        tmp_path,
        """
        import os, torch
        me = os.getpid()
        x = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([x], lr=0.1)
        for step in range(3):
            loss = (x / (0.0 if os.getpid() == me and step == 2 else 1.0)).sum()
            loss.backward()
            optimizer.step()
        """,
    )
    found = answer["found"]
    assert not found["repeated"]
    assert found["culprit"]["phase"] == "none"


def test_forks_with_two_threads(tmp_path: Path) -> None:
    """No child waits for a thread that was not copied, and none is left behind."""
    answer = watched(
        tmp_path,
        """
        import torch
        torch.manual_seed(0)
        torch.set_num_threads(2)
        net = torch.nn.Linear(256, 256)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(13):
            x = torch.randn(256, 256)
            loss = net(x).square().mean() / (0.0 if step == 12 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        every=1,
    )
    found = answer["found"]
    assert (answer["tick"], found["repeated"], found["culprit"]["op"]) == (12, True, "div")
    assert not processes_of(tmp_path)


def test_a_copy_that_does_not_run_is_given_up(tmp_path: Path) -> None:
    """The program never waits for it; the fault is seen all the same, and no other copy is tried."""
    answer = watched(
        tmp_path,
        """
        import os, time
        import torch
        from postmortem.attach.standby import standby

        standby._FORKING = 0.5
        forked = []
        os.register_at_fork(after_in_parent=lambda: forked.append(1), after_in_child=lambda: time.sleep(90))
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(4):
            assert len(forked) < 2
            loss = net(torch.ones(3)).sum() / (0.0 if step == 3 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        every=1,
    )
    assert (answer["tick"], answer["kind"], answer["found"]) == (3, "loss", None)
    assert not processes_of(tmp_path)
