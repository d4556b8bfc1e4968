"""Reruns in another precision draw the noise that the step drew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.step.precision import NoiseStays  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

NOISE = {
    "randn": lambda: torch.randn(50),
    "rand": lambda: torch.rand(3, 20),
    "randn_like": lambda: torch.randn_like(torch.ones(50)),
    "normal": lambda: torch.normal(torch.zeros(50), 1.0),
    "uniform_": lambda: torch.empty(50).uniform_(-1, 1),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.3)),
    "rsample": lambda: torch.distributions.Normal(torch.zeros(20), torch.ones(20)).rsample(),
    "gamma": lambda: torch.distributions.Gamma(torch.ones(20), torch.ones(20)).sample(),
    "randint": lambda: torch.randint(0, 9, (20,)),
}


@pytest.mark.parametrize("draw", NOISE.values(), ids=NOISE.keys())
def test_noise_stays(draw: Callable[[], torch.Tensor]) -> None:
    """In double precision the same numbers come out, and the generator is where it was in single precision."""
    torch.manual_seed(0)
    single, after = draw(), torch.rand(1)
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        with NoiseStays():
            double = draw()
    finally:
        torch.set_default_dtype(torch.float32)
    assert double.dtype == (torch.float64 if single.is_floating_point() else single.dtype)
    assert torch.allclose(double.float(), single.float(), rtol=1e-5)
    assert torch.equal(torch.rand(1), after)
