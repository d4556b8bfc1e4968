"""What explains a loss that is known not to fall: facts of a look made up here."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from postmortem.silent.facts import Gradients, ModuleSeen, OptimizerMade, ParameterSeen, Place, Stepped
from postmortem.silent.faults.dead_relu import death, deaths
from postmortem.silent.judge import judge, of_plateau
from postmortem.silent.look import Look
from postmortem.silent.observe.recorder import Recorder
from postmortem.silent.observe.watchers.rewrites import Rewrites
from postmortem.silent.weight_facts import Activated, Rewritten, Updated

MATRIX, VECTOR = 1, 2


def look(*more: object, frozen: tuple[int, ...] = ()) -> Look:
    """Five steps of a layer with a matrix of 1,000 values and a vector of 4."""
    facts: list = [
        ParameterSeen(MATRIX, (4, 250), "float32"),
        ParameterSeen(VECTOR, (4,), "float32"),
        ModuleSeen(1, "Linear", 1, "", parameters={"weight": MATRIX, "bias": VECTOR}),
        OptimizerMade(1, "Adam", [{"lr": 0.1, "parameters": [MATRIX, VECTOR]}], (Place("train.py", 5),)),
    ]
    for step in range(5):
        facts.append(Gradients(1, step, {}, frozen))
        facts.append(Stepped(1, step, 2, len(frozen), 0, 1.0, cleared=True))
    return Look([*facts, *more])


def activated(step: int, flat: float, function: str = "relu", gain: float = 1.0) -> Activated:
    return Activated(step, function, 32, flat, flat, (MATRIX, VECTOR), gain, 1.0, hidden=True)


@pytest.mark.parametrize("frozen", [(MATRIX,), (MATRIX, VECTOR)])
def test_only_a_vector_is_trained(frozen: tuple[int, ...]) -> None:
    """A way of fine-tuning for `check`, the reason where the loss is known not to fall."""
    (found,) = of_plateau([look(frozen=frozen)])
    assert (found.name, found.file, found.line) == ("frozen-parameters-in-optimizer", "train.py", 5)
    assert found.measured["frozen"] == len(frozen)
    if VECTOR not in frozen:
        assert "frozen-parameters-in-optimizer" not in [f.name for f in judge([look(frozen=frozen)])[0]]


@pytest.mark.parametrize("frozen", [(), (VECTOR,)])
def test_a_matrix_is_trained(frozen: tuple[int, ...]) -> None:
    """Then the frozen rest explains nothing."""
    assert of_plateau([look(frozen=frozen)]) == []


def test_values_at_their_bounds() -> None:
    """By a bias, so that `check` does not know whether it is meant."""
    seen = [activated(step, 0.97, "tanh", gain=0.5) for step in range(5)]
    assert judge([look(*seen)])[0] == []
    (found,) = of_plateau([look(*seen)])
    assert found.name == "saturated-activations"
    assert of_plateau([look(*seen[:-1], activated(4, 0.5, "tanh"))]) == []


def test_the_step_from_which_units_are_dead() -> None:
    """Between two looks, at a step if these follow one another; not of a layer that was dead from the start."""
    died = [activated(step, 0.99 if step >= 8 else 0.1) for step in (0, 1, 2, 4, 8, 9, 10, 16)]
    assert death(look(*died), "weight") == (4, 8)
    (found,) = [f for f in judge([look(*died)])[0] if f.name == "dead-relu"]
    assert found.measured["died"] == (4, 8)
    assert "since a step from 5 to 8" in found.evidence
    assert death(look(*(activated(step, 0.99) for step in range(5))), "weight") is None
    assert death(look(*(activated(step, 0.1) for step in range(5))), "weight") is None


def test_units_that_the_program_itself_kills() -> None:
    """A change outside of optimizer.step() that is far larger than its updates is the reason, at its line."""
    died = [activated(step, 1.0 if step >= 8 else 0.1) for step in range(5, 14)]
    updates = [Updated(1, step, {str(VECTOR): 0.6}, {str(VECTOR): 0.01}, {}) for step in range(5, 14)]
    killed = Rewritten(VECTOR, 8, 0.6, 400.0, 400.0, Place("train.py", 10))
    often = [Rewritten(VECTOR, step, 0.6, 0.6, 0.02, Place("train.py", 11)) for step in range(6, 14)]
    (found,) = deaths(look(*died, *updates, *often, killed))
    assert (found.dead, found.whole, found.written) == (8, True, killed)
    (blame,) = [f for f in judge([look(*died, *updates, killed)])[0] if f.name == "dead-relu"]
    assert blame.line == 10
    assert "changes bias outside of optimizer.step() (line 10): its norm goes from 0.6 to 400" in blame.evidence
    (found,) = deaths(look(*died, *updates, *often))
    assert found.written is None


def test_changes_outside_of_a_step_are_seen(tmp_path) -> None:
    """With their line where torch makes them, in the steps that are looked at closely."""
    recorder = Recorder(tmp_path, steps=100, seconds=None, closely=(0, 2))
    told: list[Rewritten] = []
    recorder.add = told.append  # type: ignore[assignment]
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = Rewrites(recorder)
    for change in (lambda: model.bias.data.sub_(50), lambda: model.weight.detach().numpy().fill(3), lambda: None):
        watcher.after_step(optimizer)
        recorder.stepped()
        change()
        watcher.entered(model, (), [model])
    changed = [(f.step, f.at is not None, f.after > 5) for f in told if isinstance(f, Rewritten)]
    assert changed == [(1, True, True), (2, False, True)]
    assert _get_current_dispatch_mode() is None


def test_some_steps_are_looked_at_closely(tmp_path) -> None:
    """All of these, and no others as closely."""
    recorder = Recorder(tmp_path, steps=100, seconds=None, closely=(70, 73))
    sampled = []
    for step in range(80):
        if recorder.sampled and step:
            sampled.append(step)
        assert recorder.looking
        recorder.stepped()
    assert sampled == [70, 71, 72, 73]
