"""Fixes and stages of other packages: their own change is tried on a divergence, and one that raises ends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.core.culprit import Culprit  # noqa: E402
from postmortem.core.registry import collected_faults  # noqa: E402
from postmortem.plugins import BaseFix, Overrides, StepMode, fix  # noqa: E402
from postmortem.replay.advice import advice  # noqa: E402
from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.culprit.stages import STAGES, stage  # noqa: E402
from postmortem.replay.fixes import FIXES  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _own_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for registry in (FIXES, STAGES):
        monkeypatch.setattr(registry, "_items", {registry.key(item): item for item in registry})  # type: ignore[arg-type]


def _diverging() -> Culprit:
    """A rate that keeps rising, over 60 steps."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.95)

    def faster(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.05 * 1.25**step

    return localize(
        TrainStep(
            model,
            optimizer,
            lambda m, b: ((m(b) - 1) ** 2).mean(),
            batches=lambda _: x,
            before_step=faster,
            first_step=0,
        ),
        step=60,
    )


def _failing() -> TrainStep:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, lambda m, x: (m(x) * 0).log().mean(), torch.randn(4, 3))


class _SmallLoss(StepMode):
    """Multiplies means by 1e-6."""

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        if func is torch.Tensor.mean:
            return (lambda *a, **k: func(*a, **k) * 1e-6), args, kwargs
        return func, args, kwargs


def test_a_computed_change_is_tried_on_a_divergence() -> None:
    """`change`, `describe`, `applies` and `phases` count on a divergence as on a single step; a mode is entered."""

    class Limit(BaseFix):
        limits_update = True

        def describe(self, case: Any) -> str:
            return f"{self.name} of {case.found.cause}"

    @fix
    class Computed(Limit):
        name, order = "computed", 1

        def change(self, case: Any) -> Overrides:
            return Overrides(lr=1e-4)

    @fix
    class Weak(Limit):
        name, order = "weak", 2

        def change(self, case: Any) -> Overrides:
            return Overrides(lr=0.99)

    @fix
    class Mode(Limit):
        name, order = "mode", 3

        def change(self, case: Any) -> StepMode:
            return _SmallLoss()

    @fix
    class Nothing(Limit):
        name, order = "nothing", 4

        def change(self, case: Any) -> None:
            return None

    @fix
    class Never(Limit):
        name, order = "never", 5

        def applies(self, case: Any) -> bool:
            return False

    @fix
    class Elsewhere(Limit):
        name, order = "elsewhere", 6
        phases: Sequence[Any] = ("forward",)

    culprit = _diverging()
    assert culprit.cause == "divergence"
    tried = {f.name: (f.cured, f.how) for f in culprit.fixes if f.name not in ("fp64", "clip_grad", "lower_lr")}
    assert tried == {
        "computed": (True, "computed of divergence, from step 0 on"),
        "weak": (False, "weak of divergence, from step 0 on"),
        "mode": (True, "mode of divergence, from step 0 on"),
        "nothing": (False, "nothing of divergence: changes nothing in this batch"),
    }


@pytest.mark.parametrize("diverges", [False, True])
@pytest.mark.parametrize("method", ["applies", "change", "describe", "conclude"])
def test_a_fix_that_raises(method: str, *, diverges: bool) -> None:
    """The other fixes are tried; the notes name the fix, its error and what it costs; it is not listed as tried."""

    def fail(self: BaseFix, case: Any) -> None:
        raise LookupError("no table")

    fix(type("Faulty", (BaseFix,), {"name": "faulty", "order": 1, "limits_update": True, method: fail}))
    culprit = _diverging() if diverges else localize(_failing())
    names = [f.name for f in culprit.fixes]
    assert {"clip_grad", "lower_lr"} <= set(names)
    notes = [note for note in culprit.how if "faulty" in note]
    if method == "conclude":
        assert all(note.endswith("; it revised nothing") for note in notes)
        assert len(notes) == (not diverges)
    else:
        (note,) = notes
        assert "the fix faulty failed in " in note
        assert "LookupError: no table (test_plugged_fixes.py:" in note
        assert note.endswith("; it was not tried")
        assert "faulty" not in names


def test_a_fix_that_returns_no_culprit() -> None:
    """An outcome of the wrong type is a fault of the fix."""

    @fix
    class Wrong(BaseFix):
        name, order = "wrong", 1

        def conclude(self, case: Any) -> Any:
            return None

    culprit = localize(_failing())
    assert any("TypeError: returned NoneType, not a Culprit" in note for note in culprit.how)
    assert len(culprit.fixes) > 3


def test_advice_that_raises() -> None:
    """The advice of the other fixes is given, and the fault is reported."""

    @fix
    class Faulty(BaseFix):
        name, order, overrides = "faulty", 1, Overrides(lr=1e-4)
        limits_update = True

        def advice(self, culprit: Any, cure: Any, view: Any) -> Any:
            raise LookupError("no table")

    culprit = _diverging()
    with collected_faults() as faults:
        sentences = advice(culprit, None, "x.pt")
    assert any("lower the learning rate" in sentence for sentence in sentences)
    (fault,) = faults
    assert fault.what.startswith("the fix faulty failed in advice: LookupError: no table")
    assert fault.lost == "the advice of this fix"


def test_a_stage_that_raises() -> None:
    """Later stages are asked, and the trail names the one that failed."""

    @stage(order=1)
    def faulty(case: Any) -> Culprit | None:
        raise LookupError("no table")

    culprit = localize(_failing(), fixes=False)
    assert (culprit.phase, culprit.op) == ("forward", "log")
    assert "the stage faulty failed in its diagnosis: LookupError: no table" in culprit.how[0]


def test_no_culprit_is_not_claimed_where_a_stage_failed() -> None:
    """If no other stage names a culprit, the error of the stage is raised: nothing is known of the step."""

    @stage(order=1)
    def faulty(case: Any) -> Culprit | None:
        raise LookupError("no table")

    step = _failing()
    step.step = lambda m, x: (m(x) ** 2).mean()
    with pytest.raises(LookupError, match="no table"):
        localize(step)
