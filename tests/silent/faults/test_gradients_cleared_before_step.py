"""Gradients that are gone when the optimizer steps."""

from __future__ import annotations

from postmortem.silent.faults.gradients_cleared_before_step import GradientsClearedBeforeStep
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


@blamed(GradientsClearedBeforeStep, at="optimizer.zero_grad()")
def cleared_between_backward_and_step() -> str:
    return loop(LOSS, "loss.backward()", "optimizer.zero_grad()", "optimizer.step()")


@blamed(GradientsClearedBeforeStep, at="model.zero_grad(")
def cleared_by_the_model_and_set_to_zero() -> str:
    return loop(LOSS, "loss.backward()", "model.zero_grad(set_to_none=False)", "optimizer.step()")


@quiet(GradientsClearedBeforeStep)
def cleared_at_the_start_and_at_the_end() -> str:
    return loop("optimizer.zero_grad()", LOSS, "loss.backward()", "optimizer.step()", "optimizer.zero_grad()")


@quiet(GradientsClearedBeforeStep)
def a_batch_that_is_left_out() -> str:
    return loop(
        "optimizer.zero_grad()",
        LOSS,
        "loss.backward()",
        "if step % 3 == 0:",
        "    optimizer.zero_grad()",
        "optimizer.step()",
    )


@blamed(GradientsClearedBeforeStep, at="p.grad = None")
def set_to_none_by_hand() -> str:
    gone = "for p in model.parameters(): p.grad = None"
    return loop(LOSS, "loss.backward()", gone, "optimizer.step()")


@quiet(GradientsClearedBeforeStep)
def set_to_none_before_backward() -> str:
    return loop("for p in model.parameters(): p.grad = None", LOSS, "loss.backward()", "optimizer.step()")


@quiet(GradientsClearedBeforeStep)
def updates_as_each_gradient_comes() -> str:
    """Nothing is left of the gradients at the step, and the parameters change."""
    update = "lambda p: (p.data.sub_(p.grad, alpha=0.05), setattr(p, 'grad', None))[1]"
    hooks = f"if step == 0: [p.register_post_accumulate_grad_hook({update}) for p in model.parameters()]"
    return loop(hooks, LOSS, "loss.backward()", "optimizer.step()")
