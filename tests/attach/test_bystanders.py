"""After a fault: what is still kept of a program that goes on."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

import postmortem
from postmortem.attach.boundaries.current import listener
from postmortem.attach.bystanders import Bystander, Skipping
from postmortem.attach.flags import Tick
from tests import warm

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """
    import torch, postmortem

    torch.manual_seed(0)
    x = torch.randn(60, 8)
    x[13] = float("nan")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with postmortem.watch(model, optimizer, level="basic", fix=False) as watcher:
        for step in range(30):
            part = x[step % 15 * 4 : step % 15 * 4 + 4]
            optimizer.zero_grad()
            loss = (model(part) - part[:, :1]).square().mean()
            loss.backward()
            watcher.skip_bad(loss)
            optimizer.step()
"""


def test_a_history_goes_on_where_the_update_was_left_out(tmp_path: Path) -> None:
    """And a scan shows the culprit that the watch has named, and the capture."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    done = warm.run("train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (history,) = tmp_path.glob("postmortem-report/history/*/history.jsonl")
    ticks = [json.loads(line)["tick"] for line in history.read_text().splitlines()]
    assert ticks == list(range(1, 30))
    (run,) = postmortem.scan(tmp_path).runs
    assert run.culprit is not None
    assert (run.culprit.cause, run.culprit.samples, run.ended) == ("bad-input", (1,), "completed")
    assert run.diagnosis is not None
    assert "postmortem replay" in run.diagnosis.next[-1]
    assert "captures" in run.diagnosis.next[-1]


class Kept:
    """In place of who keeps the history."""

    def __init__(self) -> None:
        self.told_of: list[Tick] = []
        self.closed = False

    def told(self, tick: Tick) -> None:
        self.told_of.append(tick)

    def close(self) -> None:
        self.closed = True

    def __getattr__(self, name: str):
        return lambda *_: None


class Told:
    """In place of the report."""

    def line(self, kind: str, **fields: object) -> None:
        """Nothing is written."""


@pytest.mark.parametrize("left_out", [True, False])
def test_what_follows_the_tick_at_fault(monkeypatch: pytest.MonkeyPatch, left_out: bool) -> None:
    """Its losses go to the history, those of a skipped update with a word; or nothing, where the fault stays."""
    monkeypatch.setattr(listener, "ticks", 3)
    levels, model = Kept(), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    who = Skipping(lambda: None, Told(), levels, left_out=left_out)  # type: ignore[arg-type]
    who.tick(3)
    assert levels.closed != left_out
    for number, gradient in ((4, 1.0), (5, torch.nan)):
        who.loss(torch.tensor(gradient))
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        who.before_update(optimizer)
        who.after_update(optimizer, False)
        who.tick(number)
    assert [(tick.number, tick.skipped) for tick in levels.told_of] == ([(4, False), (5, True)] if left_out else [])
    assert model.weight.grad is None
    who.end()
    assert levels.closed


def test_gradients_that_are_dropped_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are not finite, the update at fault was left out."""
    monkeypatch.setattr(listener, "ticks", 3)
    for gradient in (1.0, torch.nan):
        levels, model = Kept(), torch.nn.Linear(1, 1)
        model.weight.grad = torch.full((1, 1), gradient)
        who = Bystander(lambda: None, Told(), levels)  # type: ignore[arg-type]
        who.dropping(torch.optim.SGD(model.parameters(), 0.1))
        who.tick(3)
        assert levels.closed == (gradient == 1.0)
