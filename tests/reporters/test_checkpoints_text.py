"""The health of a checkpoint in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from postmortem.checkpoints.health import Health, TensorHealth
from postmortem.reporters.checkpoints_text import health_lines

pytestmark = pytest.mark.torch


def tensor(name: str, numel: int = 4, **fields: Any) -> TensorHealth:
    return TensorHealth(name, (numel,), "float32", numel, **{"norm": 3.0, "max_abs": 2.0, **fields})


@pytest.mark.parametrize(
    ("name", "numel", "part"),
    [
        ("model.weight", 4, "weights"),
        ("optimizer.state.0.exp_avg", 4, "state"),
        ("scheduler.last_lr", 1, "state"),
        ("rng_state", 5056, "state"),
        ("best_loss", 1, "record"),
        ("optimizer.state.0.step", 1, "record"),
        ("best_loss", 4, "weights"),
    ],
)
def test_a_tensor_belongs_to_weights_state_or_records(name, numel, part):
    """The name tells; a record is a single number."""
    assert tensor(name, numel).part == part


def test_the_norm_is_of_the_weights_alone():
    """Optimizer state and records do not count; a file of state alone has its norm."""
    state, record = tensor("optim.exp_avg", norm=100.0), tensor("best", 1, norm=50.0)
    assert "norm 5" in headline([tensor("a"), tensor("b", norm=4.0), state, record])
    assert "norm 100" in headline([state, record])


def headline(tensors: list[TensorHealth]) -> str:
    return next(iter(health_lines(Health("c/x.pt", 7, tensors, []), Path("c"))))


def test_state_is_named_only_where_it_leapt():
    """Of what changed since the checkpoint before, weights are shown; moments change by their own size anyway."""
    usual = [tensor("w", change=0.1), tensor("optim.exp_avg", change=2.0)]
    leapt = [tensor("w", change=0.1), tensor("optim.exp_avg", change=2000.0)]
    shown = ["\n".join(health_lines(Health("x.pt", 7, tensors, []), Path("x.pt"))) for tensors in (usual, leapt)]
    assert shown[0].endswith("largest relative changes since the previous checkpoint: w 0.1")
    assert shown[1].endswith("largest relative changes since the previous checkpoint: w 0.1, optim.exp_avg 2e+03")


def test_bad_tensors_are_shown_up_to_five():
    """Then how many more there are; every tensor where asked. A line break in a name stays in its line."""
    health = Health("x.pt", 7, [tensor(f"w\n{i}", nan=1) for i in range(7)], [])
    lines = list(health_lines(health, Path("x.pt")))
    assert len(lines) == 7
    assert lines[1] == "    w ⏎ 0 [4] float32: 1 NaN, max 2, norm 3"
    assert lines[-1] == "    and 2 more"
    assert len(list(health_lines(health, Path("x.pt"), verbose=True))) == 8
