"""Scaled gradients that are clipped."""

from __future__ import annotations

from postmortem.silent.faults.clip_before_unscale import ClipBeforeUnscale
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled={enabled})
    for step in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        {unscale}
        nn.utils.clip_grad_norm_(model.parameters(), {limit})
        scaler.step(optimizer)
        scaler.update()
"""


def loop(unscale: str = "pass", limit: str = "1.0", enabled: bool = True) -> str:
    return LOOP.format(unscale=unscale, limit=limit, enabled=enabled)


@blamed(ClipBeforeUnscale, at="clip_grad_norm_")
def no_unscale() -> str:
    return loop()


@blamed(ClipBeforeUnscale, at="clip_grad_norm_")
def unscaled_after_the_clip() -> str:
    return loop().replace("scaler.step(", "scaler.unscale_(optimizer)\n        scaler.step(")


@quiet(ClipBeforeUnscale)
def unscaled_first() -> str:
    return loop("scaler.unscale_(optimizer)")


@quiet(ClipBeforeUnscale)
def a_limit_for_scaled_gradients() -> str:
    return loop(limit="0.5 * scaler.get_scale()")


@quiet(ClipBeforeUnscale, status="not checked")
def a_disabled_scaler() -> str:
    return loop(enabled=False)
