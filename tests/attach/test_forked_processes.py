"""Processes that the program forks, as workers of its loaders, and ranks: whoever watches knows in which one it is."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]

FORKS = """
    import multiprocessing, os, signal, sys
    from pathlib import Path
    import torch
    from torch.utils.data import DataLoader
    from postmortem.attach import boundaries
    from postmortem.attach.agent import Agent

    folder = Path(sys.argv[1])
    plan = {"mode": "run", "fix": False, "on_fault": "stop", "capture": {"folder": str(folder), "keep": 1, "most": 1}}
    plan["history"] = str(folder / "history")
    boundaries.install(Agent(folder, plan))
    fork = multiprocessing.get_context("fork")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def train(steps):
        for step in range(steps):
            loss = model(torch.ones(1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def idle():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def in_child(work, *given):
        child = fork.Process(target=work, args=given)
        child.start()
        child.join(60)
        return child.exitcode

    train(3)
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    guarded = model(torch.ones(1)).sum() * float("nan")
    guarded.item()                       # read here, and pending
    list(DataLoader(range(4), num_workers=2, multiprocessing_context="fork"))
    codes = [in_child(idle), in_child(sys.exit, 0), in_child(train, 2)]
    child = os.fork()
    if child == 0:
        sys.exit(0)
    codes.append(os.waitpid(child, 0)[1])
    train(1)
    print(codes, os.getpid())
"""


def test_a_forked_process_is_a_new_one(tmp_path: Path) -> None:
    """Those that do not train write nothing, and end by a signal as they would alone; one that trains counts its own
    steps, into files of its own; the program goes on under the same copy."""
    (tmp_path / "train.py").write_text(textwrap.dedent(FORKS))
    done = warm.run("train.py", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("]")
    assert said[0] == "[0, 0, 0, 0"
    told = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "processes").iterdir()
    }
    assert len(told) == 2
    main = told.pop(said[1].strip())
    (rank,) = told.values()
    assert [line["kind"] for line in main] == ["start", *["tick"] * 4, "end"]
    assert [line.get("tick", line.get("ticks")) for line in rank[1:]] == [0, 1, 2]
    assert rank[-1]["kind"] == "end"
    assert {p.parent.name for p in tmp_path.glob("**/history.jsonl")} == {"history", "training-2"}


OF_A_BLOCK = """
    import os, torch, postmortem

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with postmortem.watch(captures=0, fix=False) as watch:
        for step in range(5):
            if step in (2, 4):
                child = os.fork()
                if child == 0:
                    break
                os.waitpid(child, 0)
            loss = (model(torch.ones(1)) / (step != 3)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("left", step, watch.result.culprit.op if watch.result else None, flush=True)
"""


def test_a_block_is_left_by_a_forked_process(tmp_path: Path) -> None:
    """The end of the block in a forked process neither tells nor removes anything of the other's, before and after a
    fault."""
    (tmp_path / "train.py").write_text(textwrap.dedent(OF_A_BLOCK))
    done = warm.run("train.py", cwd=tmp_path)
    assert done.stdout.splitlines() == ["left 2 None", "left 4 div", "left 4 div"], done.stderr
    assert done.stderr.count("Watch of") == 1
