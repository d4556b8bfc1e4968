"""SIGTERM leaves a program half a minute at most, so that a capture may not take long."""

from __future__ import annotations

import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

WAITS = """
    import os, signal, time, torch
    import postmortem
    from postmortem.attach import agent

    agent.AFTER_SIGTERM = float(os.environ["LIMIT"])
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ours = os.getpid()
    with postmortem.watch(model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            if os.getpid() != ours:
                time.sleep(float(os.environ["REPEATED"]))
            model(torch.ones(4, 3)).mean().backward()
            optimizer.step()
        os.kill(ours, signal.SIGTERM)
        print("not ended")
"""


@pytest.mark.parametrize(("limit", "repeated", "captures"), [("20", "0", 1), ("0.2", "90", 0)], ids=["soon", "late"])
def test_a_capture_that_takes_too_long_is_given_up(tmp_path: Path, limit: str, repeated: str, captures: int) -> None:
    """The step that is repeated takes longer than the limit: the program ends at once, and without a capture."""
    (tmp_path / "train.py").write_text(textwrap.dedent(WAITS))
    done = warm.run("train.py", cwd=tmp_path, env={"LIMIT": limit, "REPEATED": repeated}, timeout=60)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
    assert len([*tmp_path.glob("postmortem-report/captures/*/capture.json")]) == captures
