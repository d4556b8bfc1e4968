"""Gradients of micro-batches that are summed."""

from __future__ import annotations

from postmortem.silent.faults.accumulation_not_averaged import AccumulationNotAveraged
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


@blamed(AccumulationNotAveraged, at="loss.backward()")
def four_batches_are_summed() -> str:
    return loop(LOSS, "loss.backward()", "if step % 4 == 3:", "    optimizer.step()", "    optimizer.zero_grad()")


@blamed(AccumulationNotAveraged, at="backward()")
def parts_of_a_batch_are_summed() -> str:
    return loop(
        "optimizer.zero_grad()",
        "for few in part.split(2):",
        "    penalty = 1e-4 * sum(p.square().sum() for p in model.parameters())",
        "    (nn.functional.mse_loss(model(x[few]), y[few]) + penalty).backward()",
        "optimizer.step()",
    )


@blamed(AccumulationNotAveraged, at="loss.backward()")
def a_number_of_micro_batches_from_a_configuration() -> str:
    return loop(
        "optimizer.zero_grad()",
        "config = dict(accum=4)",
        "for i in range(config['accum']):",
        "    part = torch.arange(8 * i, 8 * i + 8)",
        "    " + LOSS,
        "    loss.backward()",
        "optimizer.step()",
    )


@quiet(AccumulationNotAveraged)
def the_learning_rate_is_divided() -> str:
    accumulated = loop(
        LOSS, "loss.backward()", "if step % 4 == 3:", "    optimizer.step()", "    optimizer.zero_grad()"
    )
    return accumulated.replace("lr=0.05", "lr=0.2 / 4")


@quiet(AccumulationNotAveraged)
def a_loss_for_each_task() -> str:
    return loop(
        "optimizer.zero_grad()",
        "for goal in (y, y.square()):",
        "    nn.functional.mse_loss(model(x[part]), goal[part]).backward()",
        "optimizer.step()",
    )


@quiet(AccumulationNotAveraged)
def the_loss_is_divided() -> str:
    return loop(LOSS, "(loss / 4).backward()", "if step % 4 == 3:", "    optimizer.step()", "    optimizer.zero_grad()")


@quiet(AccumulationNotAveraged)
def the_gradients_are_divided_before_the_step() -> str:
    return loop(
        LOSS,
        "loss.backward()",
        "if step % 4 == 3:",
        "    for p in model.parameters(): p.grad /= 4",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
    )


@quiet(AccumulationNotAveraged)
def an_optimizer_without_a_scale() -> str:
    """Adam divides by the gradient's own size."""
    accumulated = loop(
        LOSS, "loss.backward()", "if step % 4 == 3:", "    optimizer.step()", "    optimizer.zero_grad()"
    )
    return accumulated.replace("SGD", "Adam")


@quiet(AccumulationNotAveraged)
def two_losses_of_one_batch() -> str:
    return loop(
        "optimizer.zero_grad()",
        LOSS,
        "loss.backward()",
        "nn.functional.l1_loss(model(x[part]), y[part]).backward()",
        "optimizer.step()",
    )


@quiet(AccumulationNotAveraged)
def the_learning_rate_was_divided_before() -> str:
    accumulated = loop(
        LOSS, "loss.backward()", "if step % 4 == 3:", "    optimizer.step()", "    optimizer.zero_grad()"
    )
    return accumulated.replace("    model =", "    rate = 0.2 / 4\n    model =").replace("lr=0.05", "lr=rate")


@quiet(AccumulationNotAveraged)
def tasks_before_a_step_that_large_gradients_skip() -> str:
    """The comparison counts nothing."""
    return loop(
        "optimizer.zero_grad()",
        "for goal in (y, y.square()):",
        "    nn.functional.mse_loss(model(x[part]), goal[part]).backward()",
        "norm = nn.utils.clip_grad_norm_(model.parameters(), 1000.0)",
        "if norm < 500.0:",
        "    optimizer.step()",
    )


@blamed(AccumulationNotAveraged, at="loss.backward()")
def a_counter_is_compared() -> str:
    return loop(
        "waiting = 1 if step == 0 else waiting + 1",
        LOSS,
        "loss.backward()",
        "count = step if step == 0 else count",
        "count += 1",
        "if count >= 4:",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
        "    count = 0",
    )
