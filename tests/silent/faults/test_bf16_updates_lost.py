"""Updates that are rounded away."""

from __future__ import annotations

from postmortem.silent.faults.bf16_updates_lost import Bf16UpdatesLost
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    {convert}
    optimizer = torch.optim.{optimizer}
    for step in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled={autocast}):
            loss = nn.functional.mse_loss(model(x.to(model[0].weight.dtype)).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(convert: str, optimizer: str = "SGD(model.parameters(), lr=1e-3)", autocast: bool = False) -> str:
    return LOOP.format(convert=convert, optimizer=optimizer, autocast=autocast)


@blamed(Bf16UpdatesLost, at="model.to(")
def a_small_rate_in_bf16() -> str:
    return loop("model = model.to(torch.bfloat16)")


@blamed(Bf16UpdatesLost, at="bfloat16()")
def adam_in_bf16() -> str:
    return loop("model.bfloat16()", "AdamW(model.parameters(), lr=1e-5)")


@blamed(Bf16UpdatesLost, at="model = nn.Sequential")
def the_default_type() -> str:
    source = loop("pass")
    return source.replace("torch.manual_seed(0)", "torch.set_default_dtype(torch.bfloat16)").replace(
        "randn(64, 1)", "randn(64, 1, dtype=torch.float32)"
    )


@quiet(Bf16UpdatesLost, status="not checked")
def autocast_with_fp32_weights() -> str:
    return loop("pass", autocast=True)


@quiet(Bf16UpdatesLost)
def large_updates_in_bf16() -> str:
    return loop("model.bfloat16()", "Adam(model.parameters(), lr=1e-2)")


@quiet(Bf16UpdatesLost, status="not checked")
def a_small_rate_in_fp32() -> str:
    return loop("pass", "AdamW(model.parameters(), lr=1e-5)")
