"""Who is named from what further runs show: runs made up here, each with the values of one change."""

from __future__ import annotations

import math
from typing import Any

import pytest

from postmortem.attach.growth.course import Seen, course_of
from postmortem.attach.growth.explained import Suspects
from postmortem.replay.culprit.calm import apart_from
from postmortem.replay.roll.sought import Sought
from postmortem.silent.facts import Place
from postmortem.silent.faults.dead_relu import Death
from postmortem.silent.weight_facts import Rewritten

CALM = [1.0 + 0.02 * (i % 5) for i in range(100)]
GROWN = [*CALM[:60], *(1.1 * 1.2**i for i in range(40))]
LATER = [*CALM[:60], *(1.0 + 0.012 * i for i in range(40))]
"""It grows as well, ten times more slowly."""


def seen(losses: list[float], gains: dict[str, list[float]] | None = None) -> Seen:
    """A run."""
    steps = dict(enumerate(losses))
    found = Seen(losses=steps, gradients=steps, norms=dict.fromkeys(steps, 1.0), used=True)
    found.rates = {s: [0.1] for s in steps}
    found.ticks = {s: s for s in steps}
    found.gains = {name: dict(enumerate(values)) for name, values in (gains or {}).items()}
    found.places = dict.fromkeys(found.gains, ("train.py", 7))
    return found


class Answers:
    """Runs by the change that they are asked for."""

    def __init__(self, died: Death | None = None, **values: list[float]) -> None:
        self._values, self._died = values, died

    def death(self, tick: int) -> Death | None:
        """Of a hidden layer, where each step was looked at."""
        return self._died if self._died is not None and self._died.dead <= tick else None

    def run(self, change: dict, ticks: int) -> Seen | None:
        """The run with the change."""
        key = next(k for k in ("rate", "most", "clip", "hold_others", "hold") if k in change)
        key = "all" if change.get("hold") == "" else key
        return seen(self._values[key]) if key in self._values else None


@pytest.fixture
def named():
    """named(base, **runs) -> (the culprit, the trail)."""

    def suspects(base: Seen, kind: str = "growth", step: int = 70, **runs: Any):
        course = course_of(base, Sought(name="divergence", kind=kind, step=step))
        how: list[str] = []
        return Suspects(Answers(**runs), base, course, how).named()[0], how

    return suspects


KILLED = [*CALM[:60], *(6.0 + 0.02 * (i % 5) for i in range(40))]
SILENT = {"1": [0.6] * 60 + [0.0] * 40, "2": [0.5] * 60 + [math.nan] * 40}
"""Gains of a ReLU, and of the layer after it, which gets zeros."""


def test_units_that_the_program_itself_kills(named) -> None:
    """They explain a jump that stays, whatever gain has changed before; the line is that of the change."""
    written = Rewritten(1, 60, 0.6, 400.0, 400.0, Place("train.py", 10))
    died = Death("0.bias", "0", 59, 60, True, written, "its norm goes from 0.6 to 400")
    found, _ = named(seen(KILLED, SILENT), died=died, hold=CALM)
    assert (found.cause, found.phase, found.module) == ("dead-relu", "parameters", "0")
    assert (found.line, found.tensor["since"], found.established) == (10, 60, "cured")
    assert found.tensor["death"].startswith("all units of the ReLU after 0.bias are 0 for every sample from step 60 on")


def test_units_that_a_risen_learning_rate_kills(named) -> None:
    """They are named, with the rate that did it."""
    base = seen(KILLED, SILENT)
    base.rates |= {s: [6.0] for s in range(59, 60)}
    found, _ = named(base, died=Death("0.bias", "0", 59, 60, True), rate=CALM, clip=CALM)
    assert (found.cause, found.phase, found.module) == ("dead-relu", "optimizer", "0")
    assert found.tensor["learning_rate"].startswith("the learning rate goes from 0.1 to 6 at step 59, and all units")


def test_units_that_die_after_the_jump_explain_nothing(named) -> None:
    """An explosion may kill them as well."""
    gains = {"1": [0.6] * 65 + [0.0] * 35}
    found, _ = named(seen(KILLED, gains), died=Death("0.bias", "0", 64, 65, True), all=KILLED)
    assert found.cause == "bad-input"


def test_the_data(named) -> None:
    """The loss grows without updates as well."""
    found, _ = named(seen(GROWN), all=GROWN)
    assert (found.cause, found.phase, found.established) == ("bad-input", "data", "observed")


def test_what_the_loss_is_computed_from(named) -> None:
    """Without updates it leaves its course at the same step, and grows less after it."""
    jumps = [*CALM[:60], *(6.0 * 1.2**i for i in range(40))]
    held = [*CALM[:60], *(5.5 for i in range(40))]
    found, _ = named(seen(jumps), all=held, rate=jumps, clip=jumps)
    assert found.tensor["rise"].startswith("the loss leaves its course at step 60 without any update")
    assert (found.cause, found.phase, found.established) == ("bad-input", "data", "observed")


def test_a_large_gradient_before_a_jump(named) -> None:
    """Its norm is told beside what cures the jump."""
    base = seen([*CALM[:70], 30.0, *CALM[71:]])
    base.norms[69] = 1500.0
    _, how = named(base, kind="spike", all=CALM, rate=CALM, clip=CALM)
    assert "the gradient norm of step 69 is 1500, of the steps before at most 1" in how


def test_one_layer(named) -> None:
    """Held it keeps the loss calm, and all others held do not."""
    gains = {"head": [0.8] * 100, "mid": [0.8] * 62 + [0.8 * 1.3**i for i in range(38)]}
    found, _ = named(seen(GROWN, gains), all=CALM, hold=CALM, hold_others=GROWN, rate=GROWN, clip=GROWN)
    assert (found.cause, found.module, found.file, found.line) == ("exploding-layer", "mid", "train.py", 7)
    assert [(f.name, f.cured) for f in found.fixes] == [("hold_layer", True), ("lower_lr", False), ("clip_grad", False)]


def test_a_layer_is_not_named_where_all_others_held_help_as_well(named) -> None:
    """Then it is all updates together."""
    gains = {"mid": [0.8] * 62 + [0.8 * 1.3**i for i in range(38)]}
    found, _ = named(seen(GROWN, gains), all=CALM, hold=CALM, hold_others=CALM, rate=CALM, clip=GROWN)
    assert (found.cause, found.established) == ("divergence", "cured")


def test_a_growth_that_is_only_slower_is_no_cure(named) -> None:
    """Without updates it stays calm: they are at fault, and no size of them helps."""
    found, how = named(seen(GROWN), all=CALM, rate=LATER, clip=LATER)
    assert (found.cause, found.established) == ("divergence", "observed")
    assert not any(f.cured for f in found.fixes)
    assert "without updates it stays calm; smaller or clipped ones do not keep it so" in how


def test_the_update_before_a_jump(named) -> None:
    """A rate that rises for one step."""
    base = seen([*CALM[:70], 30.0, *CALM[71:]])
    base.rates[69] = [5.0]
    found, how = named(base, kind="spike", all=CALM, rate=CALM, clip=base.losses)
    assert (found.cause, found.phase, found.established) == ("optimizer-update", "optimizer", "cured")
    assert "the learning rate goes from 0.1 to 5 at step 69" in how


def test_the_rate_of_one_group(named) -> None:
    """Kept where it rose, and named with the module that has the parameters of the group."""
    base = seen([*CALM[:70], 30.0, *CALM[71:]])
    base.rates = {s: [0.1, 60.0 if s >= 69 else 0.1] for s in base.losses}
    base.groups = [["inp.weight"], ["head.0.weight", "head.2.bias"]]
    found, how = named(base, kind="spike", all=CALM, rate=CALM, clip=base.losses)
    assert (found.cause, found.module, found.established) == ("optimizer-update", "head", "cured")
    whose = "of parameter group 1, which holds the parameters of head,"
    assert f"the learning rate {whose} goes from 0.1 to 60 at step 69" in how


def test_a_rate_that_rises_in_many_steps(named) -> None:
    """None of its steps is a jump; kept where it was half of the way before, the loss stays calm."""
    base = seen(GROWN)
    base.rates = {s: [0.1 * 1.2 ** max(0, s - 50)] for s in base.losses}
    found, how = named(base, all=CALM, most=CALM, clip=GROWN)
    assert (found.cause, found.phase, found.established) == ("optimizer-update", "optimizer", "cured")
    assert any(line.startswith("the learning rate rises from 0.1 at step") for line in how)
    steady, _ = named(seen(GROWN), all=CALM, most=CALM, rate=CALM, clip=GROWN)
    assert steady.cause == "divergence"


def test_nobody_where_nothing_can_be_run(named) -> None:
    """As if a further run has other losses."""
    found, how = named(seen(GROWN))
    assert found.phase == "none"
    assert how[-1] == "nothing that was tried keeps it calm"


def test_values_without_a_growth_have_no_course() -> None:
    """A finding that the rerun does not show."""
    assert course_of(seen(CALM), Sought(name="divergence", kind="growth", step=70)) is None
    assert course_of(seen(CALM), Sought(name="loss-spike", kind="spike", step=70)) is None


def test_earlier_jumps_are_not_the_usual_level() -> None:
    """Those before, unless most values are such."""
    assert apart_from([1.0, 900.0, 1.2, 0.9, 1.1, 1.0], 1000.0) == [1.0, 1.2, 0.9, 1.1, 1.0]
    assert apart_from([1.0, 900.0, 800.0], 1000.0) == [1.0, 900.0, 800.0]
    assert apart_from([1.0, 1.3, 0.8], 2.0) == [1.0, 1.3, 0.8]
