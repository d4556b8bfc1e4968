"""The lines of the checklist that are no faults, judged from facts."""

from __future__ import annotations

import pytest

from postmortem.silent.facts import (
    Backward,
    Changed,
    Gradients,
    ModuleRan,
    ModuleSeen,
    OptimizerMade,
    ParameterSeen,
    Place,
    Seeded,
    Stepped,
)
from postmortem.silent.look import Look
from postmortem.silent.measures import measures
from postmortem.silent.trials import agree, overfitted
from postmortem.silent.weight_facts import Copied, Held, Kept, Scheduled, Took

LINE = Place("train.py", 9)


def look(losses: list[float], *more: object) -> Look:
    """Of a training with these losses."""
    facts: list[object] = list(more)
    for step, loss in enumerate(losses):
        facts += [Backward(step, loss, at=LINE), Stepped(0, step, 2, 0, 0, 1.0, True, LINE)]
    return Look(facts)


def line(seen: Look, name: str) -> tuple[str, str]:
    """Status and words of one of them."""
    return next((c.status, c.detail) for c in measures([seen]) if c.name == name)


@pytest.mark.parametrize("first", [True, False])
def test_a_scheduler_that_steps_before_the_optimizer(first: bool) -> None:
    """After the backward pass of the same step; after the optimizer is right, and so is once in a while."""
    facts: list[object] = [OptimizerMade(0, "SGD", ({"lr": 0.1, "parameters": []},))]
    for step in range(6):
        stepped = Stepped(0, step, 2, 0, 0, 1.0, True, LINE)
        scheduled = Scheduled(0, step + (not first), (0.1,), Place("train.py", 8))
        facts += [Backward(step, 1.0, at=LINE), *((scheduled, stepped) if first else (stepped, scheduled))]
    status, said = line(Look(facts), "scheduler-order")
    assert status == ("not ok" if first else "ok")
    assert said.startswith("in 5 of 5 looks scheduler.step() (line 8)" if first else "the scheduler steps after")
    assert line(look([1.0, 1.0]), "scheduler-order")[0] == "not checked"


def test_the_parts_of_a_step() -> None:
    """Their shares; a step that mostly waits for data is not ok, and on a device nothing is claimed."""
    parts = {"data": 0.001, "forward": 0.004, "backward": 0.004, "between": 0.0, "optimizer": 0.001}
    status, said = line(look([1.0], Took(50, parts, queued=False)), "step-time")
    assert (status, said) == (
        "ok",
        "10 ms a step (medians of 50): data 10%, forward 40%, backward 40%, optimizer 10%",
    )
    slow = Took(50, {**parts, "data": 0.05}, queued=False)
    assert line(look([1.0], slow), "step-time")[0] == "not ok"
    assert line(look([1.0], Took(50, parts, queued=True)), "step-time")[0] == "not checked"
    assert line(look([1.0]), "step-time")[0] == "not checked"


def test_memory_against_an_estimate() -> None:
    """Adam keeps twice the parameters; an optimizer that keeps more than is usual is not ok."""
    usual = Kept("Adam", 1000, 1000, 2000, 5000, None)
    status, said = line(look([1.0], usual), "memory")
    assert status == "ok"
    assert "activations 5 kB" in said
    assert "estimate for Adam: up to 4 kB" in said
    assert line(look([1.0], Kept("SGD", 1000, 1000, 9000, 0, None)), "memory")[0] == "not ok"
    assert line(look([1.0], Kept("Mine", 1000, 1000, 9000, 0, None)), "memory")[0] == "ok"


def test_types_devices_and_seeds() -> None:
    """Several kinds of devices, and no seed, are not ok."""
    one = Held("SGD", [["float32", "cuda:0", 3], ["float32", "cuda:1", 3]])
    assert line(look([1.0], one), "types-and-devices")[0] == "ok"
    two = Held("SGD", [["float32", "cuda:0", 3], ["bfloat16", "cpu", 1]])
    status, said = line(look([1.0], two), "types-and-devices")
    assert (status, said.endswith("on several kinds of devices")) == ("not ok", True)
    assert line(look([1.0], Seeded(0, 7)), "seeds") == ("ok", "set before the first step: 7")
    assert line(look([1.0], Seeded(4, 7)), "seeds")[0] == "not ok"


def adapter(*more: object, frozen: tuple[int, ...] = (0, 1, 2), moved: float = 0.0, zero: bool = True) -> Look:
    """A layer with an adapter of which the second matrix begins as zeros, and a head."""
    return look(
        [1.0],
        ParameterSeen(0, (8, 8), "float32"),
        ParameterSeen(1, (8, 2), "float32"),
        ParameterSeen(2, (2, 8), "float32", zero=zero),
        ParameterSeen(3, (8, 4), "float32"),
        ModuleSeen(0, "Lora", 0, "layer", parameters={"weight": 0, "A": 1, "B": 2}),
        ModuleSeen(1, "Linear", 0, "head", parameters={"weight": 3}),
        ModuleRan(0, training=True, grad=True, connected=True),
        OptimizerMade(0, "Adam", ({"parameters": [0, 1, 2, 3]},)),
        Gradients(0, 0, {"3": 1.0}, frozen),
        Changed(1, {"0": 0.0, "1": 0.0, "2": moved, "3": 0.1}),
        *more,
    )


def test_what_is_trained_and_what_is_frozen() -> None:
    """With numbers; a matrix of zeros that is frozen is worth a look, one that is trained is not."""
    status, said = line(adapter(), "trained-parameters")
    assert status == "not ok"
    assert said.startswith("1 of 4 parameters (32 of 128 values, 25 %): head.weight; held by an optimizer but frozen: ")
    assert "layer.B is a matrix of zeros and not trained" in said
    assert "worth a look" in said.lower()
    status, said = line(adapter(frozen=(0,), moved=0.1), "trained-parameters")
    assert (status, said.startswith("3 of 4 parameters")) == ("ok", True)
    assert line(adapter(frozen=()), "trained-parameters") == ("ok", "all 4 parameters (128 values)")
    assert line(look([1.0]), "trained-parameters")[0] == "not checked"


def test_frozen_layers_without_zeros_are_as_they_should_be() -> None:
    """Nor is a copy that holds averages."""
    assert line(adapter(zero=False), "trained-parameters")[0] == "ok"
    assert line(adapter(Copied(2, 1)), "trained-parameters")[0] == "ok"


def test_two_runs() -> None:
    """The same losses, bit for bit; else the first step at which they differ."""
    one, other = look([3.0, 2.0, float("nan"), 1.0]), look([3.0, 2.0, float("nan"), 1.0, 0.5])
    assert agree([one], [other]).status == "ok"
    apart = agree([one], [look([3.0, 2.0, 1.5])])
    assert (apart.status, apart.detail.split(":")[0]) == (
        "not ok",
        "from step 2 on the losses of a second run differ",
    )
    assert agree([one], []).status == "not checked"


def test_one_batch() -> None:
    """Half of the loss is gone, or it is not ok; without a loader nothing is known."""
    falling, flat = look([2.0 * 0.9**i for i in range(40)]), look([2.0] * 40)
    assert overfitted([falling], used=True).status == "ok"
    assert overfitted([flat], used=True).status == "not ok"
    assert overfitted([falling], used=False).status == "not checked"
    assert overfitted([look([2.0, 1.0])], used=True).status == "not checked"
