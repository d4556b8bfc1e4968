"""Further runs of a command: they are forked where it has made an optimizer, and count only with the same losses."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

from postmortem.attach import launch
from postmortem.attach.answers import Process
from postmortem.attach.driver import shut_in
from postmortem.attach.growth.course import Seen
from postmortem.attach.growth.runs import Runs
from postmortem.attach.steps import Mapping, Pass, Way

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
for step in range(6):
    loss = net(torch.full((8, 4), 1.0 + step)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()), flush=True)
"""


def first_run(losses: list[float]) -> Process:
    """The run that the others are compared with."""
    return Process(pid=0, passes=[Pass(tick, loss) for tick, loss in enumerate(losses)], ticks=len(losses))


EACH = Mapping(Way(1, 0, "each"), 0, ())


def test_the_command_is_started_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a change, and two with one, are forked from one process; each change has its effect alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("train.py").write_text(PROGRAM)
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(compile(PROGRAM, "train.py", "exec"), {})
    losses = [float(line) for line in told.getvalue().split()]
    begun = []

    def start(plan: dict, session: Path) -> launch.Launched:
        begun.append(plan["growth"])
        return shut_in([sys.executable, "train.py"], tmp_path, plan, session, offline=True, sandbox="auto")

    with Runs(first_run(losses), EACH, start) as runs:
        same = runs.run(None, 6)
        held = runs.run({"begin": 0, "end": 5, "hold": ""}, 6)
        slower = runs.run({"begin": 2, "end": 5, "rate": 0.1}, 6)
    assert begun == [{"serve": True}]
    assert list(same.losses.values()) == losses
    assert held.used
    assert held.losses[0] == losses[0]
    assert held.losses[5] > losses[5]
    assert slower.used
    assert list(slower.losses.values())[:3] == losses[:3]
    assert slower.losses[4] > losses[4]


def test_a_forked_run_with_other_losses_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run before wrote may be read by the next: the command is started anew, from then on each time."""
    asked = []

    def ways(name: str, losses: list[float]):
        def run(self: Runs, change: dict, ticks: int, begin: int) -> tuple[Seen, list[float]]:
            asked.append(name)
            return Seen(losses=dict(enumerate(losses))), losses[: begin + 1]

        return run

    monkeypatch.setattr(Runs, "_forked", ways("forked", [1.0, 7.0]))
    monkeypatch.setattr(Runs, "_anew", ways("anew", [1.0, 2.0]))
    with Runs(first_run([1.0, 2.0]), EACH, None) as runs:  # type: ignore[arg-type]
        assert runs.run({"begin": 0}, 2).losses == {0: 1.0, 1: 7.0}
        assert runs.run({"begin": 1}, 2).losses == {0: 1.0, 1: 2.0}
        assert runs.run({"begin": 1}, 2).losses == {0: 1.0, 1: 2.0}
    assert asked == ["forked", "forked", "anew", "anew"]
