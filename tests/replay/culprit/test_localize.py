"""The localiser on planted faults and healthy traps, and what it must leave as it was."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from postmortem.core.errors import ReplayError  # noqa: E402
from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.reporters.shared.culprit_words import statistics  # noqa: E402

pytestmark = pytest.mark.torch

CASES = sorted((Path(__file__).parents[1] / "cases").glob("case_*.py"))
ZOO = Path(__file__).parents[3] / "benchmarks" / "zoo.py"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem.removeprefix("case_"))
def test_case_is_answered_as_its_truth_says(path: Path) -> None:
    """Every field that a case asks for is right; a healthy case is not blamed."""
    zoo, case = _load(ZOO), _load(path)
    answer = zoo.localizer(case)
    if case.TRUTH["phase"] == "none":
        assert answer["phase"] == "none"
        return
    wrong = [field for field, right in zoo.judge(answer, case).items() if not right]
    assert not wrong, answer


class _Ratio(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: Any, d: Any) -> Any:
        self.seen += 1
        return (self.drop(self.fc(x)) / d).sum()


def _failing() -> TrainStep:
    torch.manual_seed(3)
    model = _Ratio()
    batch = {"x": torch.randn(4, 3), "d": torch.tensor([[1.0], [0.0], [1.0], [1.0]])}
    return TrainStep(model, torch.optim.Adam(model.parameters()), lambda m, b: m(**b), batch)


def _snapshot(step: TrainStep) -> tuple[Any, ...]:
    return (
        {k: v.clone() for k, v in step.model.state_dict().items()},
        len(step.optimizer.state),
        [p.grad for p in step.model.parameters()],
        step.model.training,
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_default_dtype(),
        [len(t) for m in step.model.modules() for t in (m._forward_hooks, m._forward_pre_hooks)],
        len(torch.nn.modules.module._global_forward_pre_hooks),
        len(torch.nn.modules.module._global_forward_hooks),
    )


def _equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    same_weights = all(torch.equal(a[0][k], b[0][k]) for k in a[0])
    return same_weights and a[1:] == b[1:]


def test_the_users_state_is_put_back() -> None:
    """Weights, buffers, optimizer, gradients, random generators, modes and hooks are as before."""
    step = _failing()
    before = _snapshot(step)
    culprit = localize(step)
    assert (culprit.phase, culprit.op, culprit.samples) == ("forward", "div", (1,))
    assert _equal(before, _snapshot(step))


def test_the_users_state_is_put_back_after_an_exception() -> None:
    """A step that raises for reasons of its own is one ReplayError with the line that raised, and leaves nothing
    changed."""
    step = _failing()

    def raises(model: Any, batch: Any) -> Any:
        model(**batch)
        raise KeyError("no such column")

    step.step = raises
    before = _snapshot(step)
    with pytest.raises(ReplayError, match=r"step 0 raised KeyError: 'no such column' at test_localize.py"):
        localize(step)
    assert _equal(before, _snapshot(step))


def test_the_suggestion_is_a_diff_of_the_users_line() -> None:
    """A repair that was tried at the operator is shown as a diff whose new line has it in the denominator."""
    culprit = localize(_failing())
    assert culprit.suggestion is not None
    minus, plus = culprit.suggestion.splitlines()[-2:]
    assert minus.lstrip("-").strip() == culprit.code
    assert "/ d.clamp(min=1e-06)" in plus
    assert next(f for f in culprit.fixes if f.name == "eps").cured


def test_no_fix_is_called_a_cure_that_was_not_run() -> None:
    """Every fix says how it was tried, and without fixes nothing is tried."""
    assert all(f.how for f in localize(_failing()).fixes)
    assert localize(_failing(), fixes=False).fixes == ()


def test_accumulated_micro_batches_count_samples_through() -> None:
    """Row j of micro-batch i is sample i * rows + j, also where several micro-batches fail."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    micro = [{"x": torch.randn(3, 2), "w": torch.tensor(w)} for w in ([1.0, 2.0, 0.0], [0.0, 1.0, 1.0])]

    def step(m: Any, b: Any) -> Any:
        return (m(b["x"]).squeeze(-1) * torch.log(b["w"])).mean()

    culprit = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, micro, accumulate=2))
    assert (culprit.op, culprit.samples, culprit.established) == ("log", (2, 3), "cured")


def test_the_failing_sub_step_of_several_is_found() -> None:
    """With one step function per optimizer the fault is found in the second, in the model of that name."""
    torch.manual_seed(0)
    models = {"g": torch.nn.Linear(3, 3), "d": torch.nn.Linear(3, 1)}
    optimizers = {name: torch.optim.SGD(models[name].parameters(), lr=0.1) for name in ("d", "g")}

    def of_g(m: Any, b: Any) -> Any:
        return torch.sqrt(m["g"](b["x"]) * 0).mean()

    steps = {"d": lambda m, b: m["d"](m["g"](b["x"]).detach()).mean(), "g": of_g}
    culprit = localize(TrainStep(models, optimizers, steps, {"x": torch.randn(4, 3)}))
    assert (culprit.phase, culprit.op, culprit.param) == ("backward", "sqrt", "g.weight")


def test_compiled_models_are_run_eagerly_and_it_is_said() -> None:
    """The operator inside a compiled model is named, under its own module's name, with a note."""
    model = torch.compile(_Ratio(), backend="eager")
    step = _failing()
    step.model, step.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
    culprit = localize(step)
    assert (culprit.op, culprit.module) == ("div", "")
    assert any("compiled" in line for line in culprit.how)


def test_a_scaler_that_backs_off_is_not_blamed() -> None:
    """Overflows that the scaler skips and that end by themselves are benign."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    batches = [{"x": torch.randn(8, 4), "y": torch.randint(0, 2, (8,))} for _ in range(12)]

    def step(m: Any, b: Any) -> Any:
        return F.cross_entropy(m(b["x"]).float(), b["y"])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_step = TrainStep(model, optimizer, step, batches=batches, autocast="fp16", scaler=True, init_scale=2.0**19)
    assert localize(train_step).phase == "none"


def test_a_fault_that_does_not_come_back_is_transient() -> None:
    """A step that fails once and not when rerun from the same state is blamed on nobody's code."""
    calls = itertools.count()

    def step(m: Any, b: Any) -> Any:
        return m(b["x"]).mean() * (float("nan") if next(calls) == 0 else 1.0)

    model = torch.nn.Linear(2, 1)
    culprit = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, {"x": torch.randn(3, 2)}))
    assert (culprit.cause, culprit.phase) == ("transient", "none")


def test_batches_by_function_need_to_know_the_step() -> None:
    """A function of batches has no end: without a step the caller is told what is missing."""
    step = _failing()
    step.batches = lambda _: step.batch
    with pytest.raises(ReplayError, match="step="):
        localize(step)


def test_a_mask_of_logarithms_is_meant() -> None:
    """-inf by log of a mask also reaches healthy samples: the softmax of the row without any entry is named, not the
    log."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)

    def step(m: Any, b: Any) -> Any:
        bias = torch.log(b["mask"])
        return (m(b["x"]) + bias).softmax(-1).square().mean()

    mask = torch.tensor([[1.0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]])
    culprit = localize(
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, {"x": torch.randn(3, 3), "mask": mask})
    )
    assert (culprit.op, culprit.samples) == ("softmax", (1,))


def test_the_tensors_of_a_backward_fault_name_their_operation() -> None:
    """The gradient that arrives is one of the inputs: whose they are is said. Those of a forward pass need no name."""
    model = torch.nn.Linear(4, 1, bias=False)
    batch = torch.ones(6, 4)
    batch[2] = 0
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    culprit = localize(TrainStep(model, sgd, lambda m, b: m(b).abs().sqrt().sum(), batch))
    assert (culprit.phase, culprit.op) == ("backward", "sqrt")
    assert [name for name, _ in statistics(culprit.tensor)][:2] == [
        "input 0 of div (backward)",
        "input 1 of div (backward)",
    ]
    assert next(name for name, _ in statistics(localize(_failing()).tensor)) == "input 0"
