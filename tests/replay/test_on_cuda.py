"""Replay on a CUDA device: tensors on two devices, a generator of its own, reads that wait.

Tests that make sense on both devices run on both; those marked `gpu` need CUDA.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import postmortem  # noqa: E402
from postmortem import TrainStep, api, localize  # noqa: E402
from postmortem.replay.trace.origins import origins  # noqa: E402
from postmortem.replay.trace.tracer import Tracer  # noqa: E402

pytestmark = pytest.mark.torch

HERE = Path(__file__).parent
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runs import as `common` can be imported."""
    monkeypatch.syspath_prepend(str(HERE / "runs"))
    monkeypatch.delitem(sys.modules, "common", raising=False)


# ---- the tracer


def _one_step(device: str, scale: float) -> Any:
    """A training step; with scale=0 its loss is NaN. The optimizer counts steps and the noise is drawn on the CPU."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    noise = torch.rand(3, 4) * 0.1

    def step() -> Any:
        optimizer.zero_grad()
        out = model(noise.to(device)) * scale
        loss = (out / out.detach().abs().sum()).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("device", DEVICES)
def test_deferred_sums_of_two_devices(device: str) -> None:
    """With sums on CPU and device, a healthy step has no suspects, and a failing one begins with its division."""
    with Tracer(deferred=True) as healthy:
        _one_step(device, 1.0)()
    assert healthy.suspects == []
    with Tracer(deferred=True) as failing:
        _one_step(device, 0.0)()
    with Tracer(detail=set(failing.suspects)) as closer:
        loss = _one_step(device, 0.0)()
    found = origins(closer.log, [closer.source(loss)])
    assert [(origin.hit.name, origin.hit.where.file) for origin in found] == [("div", __file__)]
    assert found[0].hit.index == failing.suspects[0]


@pytest.mark.gpu
def test_a_deferred_trace_waits_for_the_device_once_per_device() -> None:
    """While the step runs nothing is read: torch's own check for synchronisations stays silent."""
    step = _one_step("cuda", 1.0)
    step()
    tracer = Tracer(deferred=True)
    with tracer:
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert tracer.suspects == []


# ---- the localiser


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [
        "chunked_masked_mean",  # forward
        "nan_to_num_trap",  # backward
        "double_backward_pow",
        "opt_fused_eps_zero",  # optimizer
        "opt_rmsprop_dead_unit",
        "scaler_too_large",  # fp16, a loss scale that is too large
        "amp_energy_square",
        "params_running_var",
        "data_outlier",
        "steps_zero_row",
        "layout_pointwise",
        "healthy_double_where",
    ],
)
def test_cases_on_cuda(name: str) -> None:
    """A case of each phase gets the answer that its truth asks for, as on a CPU."""
    zoo, case = _load(HERE.parents[1] / "benchmarks" / "zoo.py"), _load(HERE / "cases" / f"case_{name}.py")
    answer = zoo.localizer(case, "cuda")
    if case.TRUTH["phase"] == "none":
        assert answer["phase"] == "none"
        return
    wrong = [field for field, right in zoo.judge(answer, case).items() if not right]
    assert not wrong, answer


class _Ratio(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)

    def forward(self, x: Any, d: Any) -> Any:
        x, d = x.to(self.fc.weight.device), d.to(self.fc.weight.device)
        return (self.drop(self.fc(x)) / d).sum()


def _failing(device: str) -> TrainStep:
    """Sample 1 of a batch that stays on the CPU is divided by zero."""
    torch.manual_seed(3)
    model = _Ratio().to(device)
    batch = {"x": torch.randn(4, 3), "d": torch.tensor([[1.0], [0.0], [1.0], [1.0]])}
    return TrainStep(model, torch.optim.Adam(model.parameters()), lambda m, b: m(**b), batch)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_that_the_step_moves(device: str) -> None:
    """A batch on the CPU that the step itself moves to the model's device is taken apart by samples like any other."""
    culprit = localize(_failing(device))
    assert (culprit.phase, culprit.op, culprit.samples, culprit.established) == ("forward", "div", (1,), "cured")


def _random_state(device: str) -> Any:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


@pytest.mark.parametrize("device", DEVICES)
def test_random_numbers_of_the_device_are_put_back(device: str) -> None:
    """After the reruns the device's generator and the weights are as they were before."""
    step = _failing(device)
    before, weights = _random_state(device), [p.detach().clone() for p in step.model.parameters()]
    culprit = localize(step)
    assert culprit.cause == "forward-op"
    assert torch.equal(before, _random_state(device))
    assert all(torch.equal(a, b) for a, b in zip(weights, step.model.parameters(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_a_fault_that_depends_on_the_drawn_numbers(device: str) -> None:
    """A division by what dropout left fails again in every rerun: the same numbers are drawn on the device."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5)).to(device)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)

    def step(m: Any, b: Any) -> Any:
        kept = m(b.to(device))
        return (b.to(device).sum(1, keepdim=True) / kept).sum()

    culprit = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, torch.ones(16, 2)))
    assert (culprit.phase, culprit.op) == ("forward", "div")
    assert culprit.cause != "transient"


# ---- checkpoints and runs of another device


def _claims_cuda(path: Path) -> None:
    """Rewrites a checkpoint in place so that its tensors are said to have been on a GPU."""
    with zipfile.ZipFile(path) as archive:
        parts = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in parts:
            cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
            archive.writestr(info, data.replace(cpu, cuda) if info.filename.endswith("data.pkl") else data)


@pytest.mark.usefixtures("common")
@pytest.mark.parametrize("saved_on", ["said to be cuda", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("device", DEVICES)
def test_checkpoint_saved_on_cuda(tmp_path: Path, saved_on: str, device: str) -> None:
    """Weights saved from a GPU are looked into without one, and replayed on either device."""
    run = tmp_path / "run"
    module = _load(HERE / "runs" / "one_step_early.py")
    module.train(str(run), device="cuda" if saved_on == "cuda" else "cpu")
    if saved_on != "cuda":
        for path in run.glob("*.pt"):
            _claims_cuda(path)
    named = {Path(c.path).name: c for c in postmortem.scan(run).runs[0].checkpoints}
    assert named["step_00023.pt"].finite
    result = api.replay(run, recipe=str(HERE / "runs" / "one_step_early.py"), device=device)
    assert (result.culprit.phase, result.culprit.op, result.culprit.samples) == ("backward", "sqrt", (2,))


@pytest.mark.gpu
@pytest.mark.usefixtures("common")
@pytest.mark.parametrize(("trained_on", "device"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
@pytest.mark.parametrize(
    ("name", "step", "phase", "op", "samples"),
    [("fp16_overflow", 37, "forward", "mul", (4,)), ("one_step_early", 26, "backward", "sqrt", (2,))],
)
def test_fidelity_between_devices(
    tmp_path: Path, name: str, step: int, phase: str, op: str, samples: tuple[int, ...], trained_on: str, device: str
) -> None:
    """A run of one device is followed on another to rounding, and the culprit is the same, with a GradScaler too."""
    shutil.copy(HERE / "runs" / f"{name}.py", tmp_path / "recipe.py")
    run = tmp_path / "run"
    _load(HERE / "runs" / f"{name}.py").train(str(run), device=trained_on)
    result = api.replay(run, recipe=str(tmp_path / "recipe.py"), device=device)
    assert (result.step, result.culprit.phase, result.culprit.op, result.culprit.samples) == (step, phase, op, samples)
    assert result.fidelity.ok
    assert result.fidelity.compared > 0
