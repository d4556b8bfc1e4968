"""Steps that raise instead of coming to their end: because something is not finite, or for reasons of their own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from postmortem.core.errors import ReplayError  # noqa: E402
from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


class Rates(nn.Module):
    """Logits divided by a column of the batch, which may be 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x: Any, size: Any) -> Any:
        return self.scores(x) / size[:, None]


def _built(step: Callable[[Any, Any], Any], size: tuple[float, ...] = (1.0, 2.0, 0.0, 1.0), **fields: Any) -> TrainStep:
    torch.manual_seed(0)
    model = Rates()
    batch = {"x": torch.randn(4, 4), "size": torch.tensor(size), "y": torch.tensor([0, 1, 2, 0])}
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step, batch, **fields)


def _checked_by_distributions(model: Any, batch: Any) -> Any:
    chosen = torch.distributions.Categorical(logits=model(batch["x"], batch["size"]), validate_args=True)
    return -chosen.log_prob(batch["y"]).mean()


def _asserted(model: Any, batch: Any) -> Any:
    loss = F.cross_entropy(model(batch["x"], batch["size"]), batch["y"])
    assert torch.isfinite(loss), "the loss is not finite"
    return loss


def _exits(model: Any, batch: Any) -> Any:
    loss = F.cross_entropy(model(batch["x"], batch["size"]), batch["y"])
    if not torch.isfinite(loss):
        sys.exit(1)
    return loss


def _gives_up(model: Any, batch: Any) -> Any:
    raise GeneratorExit


REFUSING = [
    (_checked_by_distributions, "ValueError: Expected parameter logits"),
    (_asserted, "AssertionError: the loss is not finite"),
    (_exits, "was ended by sys.exit(1) at test_raising.py"),
]


@pytest.mark.parametrize(("step", "said"), REFUSING)
def test_a_step_that_refuses_nan_is_traced_up_to_there(step: Any, said: str) -> None:
    """The origin is named as if the step had run on, what was raised is told, and the cures are tried."""
    culprit = localize(_built(step))
    assert (culprit.phase, culprit.module, culprit.op, culprit.samples) == ("forward", "", "div", (2,))
    assert culprit.code == "return self.scores(x) / size[:, None]"
    assert culprit.established == "cured"
    assert {f.name for f in culprit.fixes if f.cured} == {"drop_sample", "eps"}
    assert any(said in line for line in culprit.how)


def test_a_later_step_that_raises() -> None:
    """The steps before it are rolled again, and the one that raised is the step at fault."""
    good, bad = _built(_asserted, (1.0, 1.0, 1.0, 1.0)), _built(_asserted)
    good.batches = [good.batch, good.batch, bad.batch, good.batch]
    culprit = localize(good)
    assert (culprit.step, culprit.op, culprit.samples) == (2, "div", (2,))


def test_a_gradient_hook_that_refuses_nan() -> None:
    """What is raised in the backward pass leads to the derivative that failed."""

    def step(model: Any, batch: Any) -> Any:
        h = model(batch["x"], batch["size"])
        h.register_hook(_refuse)
        return torch.sqrt((h - h.detach()).pow(2).sum(-1)).mean()

    culprit = localize(_built(step, (1.0, 1.0, 1.0, 1.0)))
    assert (culprit.phase, culprit.op) == ("backward", "sqrt")
    assert culprit.code is not None
    assert culprit.code.startswith("return torch.sqrt(")


def test_an_optimizer_that_refuses_nan() -> None:
    """What the optimizer raises over a gradient is known again in the reruns in other precisions: not gone in any."""

    class Careful(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                _refuse(p.grad)
            super().step(closure)

    built = _built(
        lambda m, b: (m(b["x"], b["size"]) - m(b["x"], b["size"]).detach()).pow(2).sum(-1).sqrt().mean(),
        (1.0, 1.0, 1.0, 1.0),
    )
    built.optimizer = Careful(built.model.parameters(), lr=0.01)
    culprit = localize(built)
    assert (culprit.phase, culprit.op, culprit.precision_only) == ("backward", "sqrt", False)


def _refuse(gradient: Any) -> None:
    if not torch.isfinite(gradient).all():
        raise FloatingPointError("a gradient is not finite")


def test_a_batch_that_the_step_refuses() -> None:
    """A check of the input itself, before any operator made anything of it, names the batch and its sample."""

    def step(model: Any, batch: Any) -> Any:
        if batch["x"].isnan().any():
            raise ValueError("NaN in the features")
        return F.cross_entropy(model(batch["x"], batch["size"]), batch["y"])

    built = _built(step, (1.0, 1.0, 1.0, 1.0))
    built.batch["x"][1, 2] = float("nan")
    culprit = localize(built)
    assert (culprit.phase, culprit.samples) == ("data", (1,))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda m, b: m(b["x"][:, :3], b["size"]).sum(), "step 0 raised RuntimeError: mat1 and mat2"),
        (lambda m, b: F.cross_entropy(m(b["x"], b["size"]), b["y"] + 7), "step 0 raised IndexError: Target"),
        (lambda m, b: sys.exit("no more epochs"), r"step 0 was ended by sys.exit\('no more epochs'\)"),
        (_gives_up, r"step 0 was ended by GeneratorExit\(\) at test_raising.py"),
    ],
)
def test_an_exception_of_its_own_is_one_line(step: Any, said: str) -> None:
    """Although something is not finite on the way, an exception that this does not explain is told as it is."""
    with pytest.raises(ReplayError, match=said) as caught:
        localize(_built(step))
    assert "\n" not in str(caught.value)
    assert "test_raising.py" in str(caught.value)


def test_a_batch_source_that_exits() -> None:
    """``sys.exit`` in what draws the batches is one line as well, not the end of the process."""
    built = _built(_asserted)
    built.batches = lambda step: sys.exit("no such file")
    with pytest.raises(ReplayError, match=r"ended by sys.exit\('no such file'\)"):
        localize(built, step=3)


def test_an_assertion_that_asks_for_more_than_finite_values() -> None:
    """A check of a sign, which any NaN fails: the origin is mended with values that its tensor has elsewhere."""

    def step(m: Any, b: Any) -> Any:
        weight = torch.log(b["size"])
        assert (weight <= 0).all(), "weights are logarithms of probabilities"
        return (weight[:, None] * m.scores(b["x"])).mean()

    culprit = localize(_built(step, size=(0.5, 0.7, -0.1, 0.9)))
    assert (culprit.phase, culprit.op, culprit.samples, culprit.established) == ("forward", "log", (2,), "cured")
