"""A step that raises over a NaN of its batch: the batch is at fault, not the copy that the replay made of it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem import TrainStep, api  # noqa: E402

pytestmark = pytest.mark.torch


def test_raising_over_a_bad_batch() -> None:
    """Phase data with the sample, though the factorisation refused what came of it."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)

    def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
        z = model(x)
        kernel = torch.exp(-((z[:, None] - z[None]) ** 2).sum(-1)) + 0.1 * torch.eye(len(x))
        return torch.linalg.cholesky(kernel).diagonal().log().sum()

    x = torch.randn(6, 3)
    x[4, 1] = float("nan")
    found = api.localize(TrainStep(model, torch.optim.Adam(model.parameters()), loss_of, x))
    assert (found.phase, found.cause, found.samples) == ("data", "bad-input", (4,))
    assert {"drop_sample", "sanitize_input"} <= {fix.name for fix in found.fixes if fix.cured}
