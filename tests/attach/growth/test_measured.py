"""What is measured and changed in the process of the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import warm

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from postmortem.attach import boundaries
from postmortem.attach.growth import measured
from postmortem.attach.observer import Observer

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mid = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    def forward(self, x):
        h = self.up(x)
        return self.mid(h)

boundaries.install(Observer())
measured.begin(Path(sys.argv[1]), {"change": json.loads(sys.argv[2])})
torch.manual_seed(0)
model, x = Net(), torch.randn(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(6):
    optimizer.zero_grad()
    model(x).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    kept.append([m.weight.sum().item() for m in (model.up, model.mid)])
print(json.dumps({"kept": kept, "lr": optimizer.param_groups[0]["lr"]}))
"""


@pytest.fixture
def trained(tmp_path: Path):
    """trained(change) -> (what the program printed, the rows)."""

    def run(change: dict | None):
        (tmp_path / "train.py").write_text(PROGRAM)
        done = warm.run(str(tmp_path / "train.py"), str(tmp_path), json.dumps(change))
        assert done.returncode == 0, done.stderr
        path = next((tmp_path / "growth").glob("*.jsonl"))
        return json.loads(done.stdout), [json.loads(line) for line in path.read_text().splitlines()]

    return run


def test_each_step_is_measured(trained) -> None:
    """Rates, norms before and after the program clips, and the gain of each module with the line that calls it."""
    _, rows = trained(None)
    assert [row["tick"] for row in rows] == list(range(6))
    assert rows[0]["rates"] == [0.1]
    assert rows[0]["norm"] == pytest.approx(2.0, rel=1e-4)
    assert rows[0]["unclipped"] > 2.0
    assert set(rows[0]["gains"]) == {"up", "mid"}
    assert PROGRAM.splitlines()[rows[0]["places"]["mid"][1] - 1].strip() == "return self.mid(h)"


def test_a_module_is_held_for_some_steps(trained, tmp_path: Path) -> None:
    """The other one goes on, and both do after the last of these steps."""
    told, rows = trained({"hold": "mid", "begin": 2, "end": 3})
    up, mid = zip(*told["kept"], strict=True)
    assert mid[1] == mid[2] == mid[3] != mid[4]
    assert len(set(up)) == 6
    assert rows[0]["gains"] == {}
    assert (tmp_path / "used").exists()


def test_a_rate_is_put_back(trained) -> None:
    """A scheduler of the program goes on from its own value."""
    told, _ = trained({"rate": 0.0, "begin": 2, "end": 5})
    up, _ = zip(*told["kept"], strict=True)
    assert up[0] != up[1] == up[2] == up[5]
    assert told["lr"] == 0.1


def test_weights_that_the_program_sets_itself_are_put_back(tmp_path: Path, monkeypatch) -> None:
    """Before the forward pass of the next step, once: what a pass changes is left."""
    import torch

    from postmortem.attach.boundaries.current import listener
    from postmortem.attach.growth.changes import Change

    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net.bias.item()
    change = Change({"begin": 3, "end": 5, "hold": ""}, lambda name: net, tmp_path / "used")
    for tick, expected in ((2, -60.0), (3, before), (4, before), (4, -60.0), (6, -60.0)):
        monkeypatch.setattr(listener, "ticks", tick)
        if tick == 3:
            net.bias.data.fill_(before)
            change._before(optimizer, (), {})
        net.bias.data.fill_(-60.0)
        change._forward(net, ())
        assert net.bias.item() == pytest.approx(expected)
