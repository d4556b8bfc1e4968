"""The stages of the diagnosis: which there are, and how one is added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from postmortem import TrainStep, api  # noqa: E402
from postmortem.replay.culprit.stages import STAGES, stage  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.model import Culprit

pytestmark = pytest.mark.torch


def _failing() -> TrainStep:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, lambda m, x: (m(x) * 0).log().mean(), torch.randn(4, 3))


@pytest.fixture
def asked() -> Iterator[list[int | None]]:
    """A stage between loss_scale and origin that notes the steps it is asked about and names their samples' first
    column."""
    list(STAGES)
    before = dict(STAGES._items)
    steps: list[int | None] = []

    @stage(order=58)
    def first_column(case: Investigation) -> Culprit | None:
        steps.append(case.step)
        case.trail.append("asked before the origin")
        if case.reruns.batch[0, 0] < 100:
            return None
        return case.culprit(cause="bad-input", phase="data", established="observed")

    yield steps
    STAGES._items.clear()
    STAGES._items.update(before)


def test_the_stages_are_asked_cheapest_first() -> None:
    """A divergence is excluded before the step is traced, the origin is looked for last; others may come between."""
    names = [s.__name__ for s in STAGES]
    known = ["divergence", "layout", "transient", "untraceable", "loss_scale", "earlier_step", "origin"]
    assert [name for name in names if name in known] == known


def test_an_added_stage_may_leave_the_answer_to_a_later_one(asked: list[int | None]) -> None:
    """What it noted stays in the trail of the culprit that a later stage names."""
    found = api.localize(_failing(), fixes=False)
    assert asked == [0]
    assert (found.phase, found.op) == ("forward", "log")
    assert "asked before the origin" in found.how


def test_an_added_stage_may_name_the_culprit(asked: list[int | None]) -> None:
    """The stages after it are not asked."""
    step = _failing()
    step.batch[0, 0] = 1000.0
    found = api.localize(step, fixes=False)
    assert asked == [0]
    assert (found.phase, found.step, found.op) == ("data", 0, None)
    assert found.how[-1] == "asked before the origin"
