"""Gradients clipped to almost nothing."""

from __future__ import annotations

from postmortem.silent.faults.gradient_clip_too_small import GradientClipTooSmall
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(240, 4)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.{optimizer}
    for step in range(40):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        {clip}
        optimizer.step()
"""


def loop(clip: str, optimizer: str = "SGD(model.parameters(), lr=0.05)") -> str:
    return LOOP.format(clip=clip, optimizer=optimizer)


@blamed(GradientClipTooSmall, at="clip_grad_norm_")
def a_tiny_norm() -> str:
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 1e-4)")


@blamed(GradientClipTooSmall, at="clip_grad_value_")
def a_tiny_value() -> str:
    return loop("torch.nn.utils.clip_grad_value_(model.parameters(), clip_value=1e-6)")


@quiet(GradientClipTooSmall)
def a_usual_limit() -> str:
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 1.0)")


@quiet(GradientClipTooSmall)
def a_tiny_norm_with_adam() -> str:
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 1e-3)", "Adam(model.parameters(), lr=1e-3)")


@quiet(GradientClipTooSmall)
def a_small_norm_with_a_large_rate() -> str:
    """Normalised gradients: all are cut, and the rate makes up for it."""
    return loop("nn.utils.clip_grad_norm_(model.parameters(), 0.01)", "SGD(model.parameters(), lr=5.0)")
