"""Gradients that are never cleared."""

from __future__ import annotations

from postmortem.silent.faults.missing_zero_grad import MissingZeroGrad
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randn(240, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, part in enumerate(torch.arange(240).split(8)):
        {body}
"""
LOSS = "loss = nn.functional.mse_loss(model(x[part]), y[part])"


def loop(*body: str) -> str:
    return LOOP.format(body=("\n" + " " * 8).join(body))


@blamed(MissingZeroGrad, at="loss.backward()")
def nothing_clears() -> str:
    return loop(LOSS, "loss.backward()", "optimizer.step()")


@blamed(MissingZeroGrad, at="loss.backward()")
def cleared_once_in_six_steps() -> str:
    return loop("if step % 6 == 0: optimizer.zero_grad()", LOSS, "loss.backward()", "optimizer.step()")


@quiet(MissingZeroGrad)
def sparse_gradients() -> str:
    return """
        import torch

        torch.manual_seed(0)
        table = torch.nn.Embedding(20, 1, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        for step in range(12):
            loss = (table(torch.randint(0, 20, (8,))) - 1).square().mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
    """


@quiet(MissingZeroGrad)
def cleared_after_the_step() -> str:
    return loop(LOSS, "loss.backward()", "optimizer.step()", "optimizer.zero_grad()")


@quiet(MissingZeroGrad)
def cleared_by_the_model() -> str:
    return loop("model.zero_grad(set_to_none=False)", LOSS, "loss.backward()", "optimizer.step()")


@quiet(MissingZeroGrad)
def cleared_by_hand() -> str:
    return loop("for p in model.parameters(): p.grad = None", LOSS, "loss.backward()", "optimizer.step()")


@quiet(MissingZeroGrad)
def accumulated_over_four_batches() -> str:
    return loop(LOSS, "(loss / 4).backward()", "if step % 4 == 3:", "    optimizer.step()", "    optimizer.zero_grad()")


@quiet(MissingZeroGrad)
def copies_in_fp32_that_get_each_gradient_anew() -> str:
    """Gradients are cleared at the weights; the optimizer has copies, whose gradients are assigned."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        x, y = torch.randn(240, 4), torch.randn(240, 1)
        model = nn.Linear(4, 1).bfloat16()
        copies = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
        optimizer = torch.optim.SGD(copies, lr=0.05)
        for part in torch.arange(240).split(8):
            for p in model.parameters():
                p.grad = None
            loss = nn.functional.mse_loss(model(x[part].bfloat16()).float(), y[part])
            loss.backward()
            for p, copy in zip(model.parameters(), copies):
                copy.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for p, copy in zip(model.parameters(), copies):
                    p.copy_(copy)
    """
