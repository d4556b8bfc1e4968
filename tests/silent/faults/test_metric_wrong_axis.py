"""Metrics over a wrong dimension."""

from __future__ import annotations

from postmortem.silent.faults.metric_wrong_axis import MetricWrongAxis
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 2, 5, 6), torch.randint(0, 3, (240, 5, 6))
    model = nn.Conv2d(2, 3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(16):
        out = model(x[part])
        loss = nn.functional.cross_entropy({given})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {metric}
"""
PIXELS = "out, y[part]"


def loop(*metric: str, given: str = PIXELS) -> str:
    return LOOP.format(metric=("\n" + " " * 8).join(metric), given=given)


@blamed(MetricWrongAxis, at="argmax(-1)")
def over_the_pixels() -> str:
    return loop("accuracy = (out.argmax(-1) == y[part][..., 0].unsqueeze(1)).float().mean()")


@blamed(MetricWrongAxis, at="torch.max(out, 3)")
def where_the_loss_gets_rows() -> str:
    rows = "out.permute(0, 2, 3, 1).reshape(-1, 3), y[part].reshape(-1)"
    return loop("best = torch.max(out, 3)[1]", "hits = best.eq(y[part][:, None, :, 0]).sum()", given=rows)


@blamed(MetricWrongAxis, at="hits = ")
def a_column_against_a_row() -> str:
    whole = "out.mean((2, 3)), y[part][:, 0, 0]"
    return loop(
        "best = out.mean((2, 3)).argmax(1, keepdim=True)", "hits = (best == y[part][:, 0, 0]).sum()", given=whole
    )


@quiet(MetricWrongAxis)
def over_the_classes() -> str:
    return loop("accuracy = (out.argmax(1) == y[part]).float().mean()")


@quiet(MetricWrongAxis)
def channels_last() -> str:
    rows = "out.permute(0, 2, 3, 1).reshape(-1, 3), y[part].reshape(-1)"
    return loop("accuracy = (out.permute(0, 2, 3, 1).argmax(-1) == y[part]).float().mean()", given=rows)


@quiet(MetricWrongAxis)
def all_pairs_of_answers() -> str:
    return loop("best = out.argmax(1)", "same = (best[:, None] == y[part][None]).float().mean()")


@quiet(MetricWrongAxis, status="not checked")
def the_largest_pixel_is_not_compared() -> str:
    return loop("peak = out.flatten(2).argmax(-1)", "print(peak.shape)")


TOKENS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 5, 4), torch.randint(0, 3, (240, 5))
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(16):
        out = model(x[part].transpose(0, 1))
        tags = y[part]
        loss = nn.functional.cross_entropy(out.permute(1, 2, 0), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = out.argmax(-1)
        accuracy = (best.reshape(-1) == {labels}.reshape(-1)).float().mean()
"""


@blamed(MetricWrongAxis, at="accuracy = ")
def time_first_against_batch_first() -> str:
    return TOKENS.format(labels="tags")


@quiet(MetricWrongAxis)
def both_time_first() -> str:
    return TOKENS.format(labels="tags.t()")
