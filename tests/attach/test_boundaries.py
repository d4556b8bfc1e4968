"""What a program does becomes events, whatever it trains with. One process does it all: torch is patched for good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "boundaries_program.py"
PLAIN = ["loss", "backward", "before True", "after", "tick"]


@pytest.fixture(scope="module")
def lines() -> list[dict]:
    """What the program printed."""
    done = warm.run(str(PROGRAM))
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def told(lines) -> dict[str, list[str]]:
    """Part of the program -> its events."""
    return lines[0]


def short(events: list[str]) -> list[str]:
    """The events without the values of losses."""
    return ["loss" if e.startswith("loss") else e for e in events]


def test_a_plain_step(told) -> None:
    """Loss, backward pass, update, tick, in this order."""
    assert told["plain"] == ["loss 3", "backward", "before True", "after", "tick"]


def test_accumulation(told) -> None:
    """Two backward passes, one tick."""
    assert told["accumulation"] == ["loss 1", "backward", "loss 2", "backward", "before True", "after", "tick"]


def test_batches_come_before_their_losses(told) -> None:
    """They are counted from 0 for each iterator."""
    assert short(told["loader"]) == ["batch 0", *PLAIN, "batch 1", *PLAIN]


def test_a_closure_runs_inside_the_step(told) -> None:
    """Gradients are final at its end; the step is one tick."""
    assert short(told["closure"]) == PLAIN


def test_each_optimizer_makes_a_tick(told) -> None:
    """Of one backward pass as well."""
    assert short(told["two optimizers"]) == [*PLAIN, "before True", "after", "tick"]


def test_nested_optimizers_make_one_tick(told) -> None:
    """The inner step is part of the outer one."""
    assert short(told["an optimizer around another"]) == PLAIN


def test_a_scaler_skips(told) -> None:
    """A skipped step is a tick; the loss is told as it was before the scaling."""
    skipped = ["loss 3", "backward", "skipped", "tick"]
    assert told["scaler"] == ["loss 3", "backward", "before True", "after", "tick", *skipped]


@pytest.mark.parametrize("kind", ["item", "tensor"])
def test_a_loss_that_is_read_and_left_out(told, kind: str) -> None:
    """It is told when the program reads its next loss at the same place; a metric that is always NaN is not."""
    events = short(told[f"guarded by {kind}"])
    assert events.count("tick") == 4
    assert events.count("abandoned") == 1
    assert [e for e in events if e in ("abandoned", "tick")] == ["tick", "tick", "abandoned", "tick", "tick"]


def test_gradients_that_are_dropped(told) -> None:
    """`zero_grad` after a backward pass and before an update."""
    assert short(told["gradients dropped"])[-1] == "dropping"
    assert "dropping" not in told["plain"] + told["accumulation"] + told["closure"]


def test_numbers_without_gradients_are_not_losses(told) -> None:
    """Nothing is told of them."""
    assert told["detached"] == []


def test_an_exception_has_the_frames_of_the_program_only(lines) -> None:
    """Our wrappers are not in its traceback."""
    assert lines[1]["raised"] == "IndexError"
    assert not [f for f in lines[1]["frames"] if "attach/boundaries/" in f]


INTERRUPTED = """
import os, signal, torch
from postmortem.attach import boundaries
from postmortem.attach.observer import Observer

class Watch(Observer):
    def loss(self, loss):
        os.kill(os.getpid(), signal.SIGINT)

boundaries.install(Watch())
w = torch.nn.Parameter(torch.ones(2))
torch.optim.SGD([w], lr=0.1)
w.sum().backward()
"""


def test_an_interruption_has_the_frames_of_the_program_only(tmp_path: Path) -> None:
    """Also where it comes while a step is looked at."""
    (tmp_path / "train.py").write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "KeyboardInterrupt" in done.stderr
    assert "w.sum().backward()" in done.stderr
    assert "postmortem" not in done.stderr.replace(str(tmp_path), "")
