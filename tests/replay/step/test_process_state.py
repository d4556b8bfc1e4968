"""`localize` called in a live process leaves it, the model and the optimizer bit for bit as they were, however it
ends."""

from __future__ import annotations

import os
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402

from postmortem import PostmortemError, TrainStep, api  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            torch.nn.Linear(4, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(8, 1),
        )
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.calls, self.sums = 0, [0.0]

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.sums.append(float(x.sum()))
        self.seen = x
        return self.last(self.drop(torch.relu(self.norm(self.first(x))))).squeeze(-1)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    return ((model(batch["x"]) - batch["y"].log()) ** 2).mean()


def failing(after: int, error: type[BaseException]) -> Callable[[Any, Any], torch.Tensor]:
    """`loss_of`, which raises from its call number `after` on."""
    calls = [0]

    def step(model: Any, batch: Any) -> torch.Tensor:
        calls[0] += 1
        if calls[0] >= after:
            raise error("in the middle")
        return loss_of(model, batch)

    return step


def process() -> dict[str, Any]:
    return {
        "rng": (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()),
        "modes": (
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        ),
        "flags": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        "defaults": (torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()),
        "stacks": (
            torch.overrides._get_current_function_mode_stack(),
            torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        ),
        "python": (
            list(sys.path),
            os.getcwd(),
            dict(os.environ),
            list(warnings.filters),
            sys.gettrace(),
            sys.dont_write_bytecode,
        ),
        "hooks": {
            n: dict(v)
            for n, v in vars(torch.nn.modules.module).items()
            if n.startswith("_global_") and isinstance(v, dict)
        },
    }


def objects(model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> list[Any]:
    def bits(t: torch.Tensor | None) -> Any:
        return None if t is None else (id(t), t.data_ptr(), t.detach().numpy().tobytes(), t.requires_grad)

    state = [(k, bits(v) if isinstance(v, torch.Tensor) else v) for s in optimizer.state.values() for k, v in s.items()]
    return [
        [(n, bits(p), bits(p.grad)) for n, p in model.named_parameters()],
        [(n, bits(b)) for n, b in model.named_buffers()],
        [
            (n, m.training, len(m._forward_hooks), len(m._backward_hooks), sorted(vars(m)))
            for n, m in model.named_modules()
        ],
        [
            model.calls,
            list(model.sums),
            state,
            [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        ],
        [(k, bits(v)) for k, v in batch.items()],
    ]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "step",
    [
        loss_of,
        failing(1, ValueError),
        failing(3, ValueError),
        failing(9, ValueError),
        failing(2, KeyboardInterrupt),
        failing(7, KeyboardInterrupt),
    ],
    ids=["to its end", "at once", "raising third", "raising ninth", "interrupted second", "interrupted seventh"],
)
def test_left_as_it_was(step: Any, grad: bool) -> None:
    """Random numbers, modes, flags, hooks, path, filters; weights, gradients, buffers, flags, attributes and optimizer
    state."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).pow(2).mean().backward()
        optimizer.step()
    model.drop.eval()
    batch = {"x": torch.randn(6, 4), "y": torch.rand(6)}
    batch["y"][3] = 0.0
    with (
        warnings.catch_warnings(),
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", torch.bfloat16, enabled=not grad),
    ):
        warnings.filterwarnings("error", "a filter of the user's own")
        before = process(), objects(model, optimizer, batch)
        try:
            found = api.localize(TrainStep(model, optimizer, step, batch))
            assert found.op == "log"
        except (KeyboardInterrupt, PostmortemError):
            assert step is not loss_of
        after = process(), objects(model, optimizer, batch)
    assert after == before
