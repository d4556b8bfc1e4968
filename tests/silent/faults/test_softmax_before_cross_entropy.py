"""Softmax twice."""

from __future__ import annotations

from postmortem.silent.faults.softmax_before_cross_entropy import SoftmaxBeforeCrossEntropy
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randint(0, 3, (240,))
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3){last})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(8):
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        optimizer.step()
"""


def loop(loss: str, last: str = "") -> str:
    return LOOP.format(loss=loss, last=last)


@blamed(SoftmaxBeforeCrossEntropy, at="loss = ")
def the_model_ends_with_a_softmax() -> str:
    return loop("nn.functional.cross_entropy(model(x[part]), y[part])", ", nn.Softmax(-1)")


@blamed(SoftmaxBeforeCrossEntropy, at="loss = ")
def a_criterion_and_images() -> str:
    """Classes in dimension 1 of four; the criterion is a module."""
    images = "model(x[part].view(-1, 2, 1, 4)).permute(0, 3, 1, 2).softmax(1)"
    return loop(f"nn.CrossEntropyLoss()({images}, y[part].view(-1, 2, 1))")


@blamed(SoftmaxBeforeCrossEntropy, at="loss = ")
def log_softmax_of_a_softmax() -> str:
    return loop("nn.functional.nll_loss(model(x[part]).softmax(1).log_softmax(1), y[part])")


@quiet(SoftmaxBeforeCrossEntropy)
def log_softmax_before_cross_entropy() -> str:
    """It changes nothing."""
    return loop("nn.functional.cross_entropy(model(x[part]), y[part])", ", nn.LogSoftmax(-1)")


@quiet(SoftmaxBeforeCrossEntropy)
def a_softmax_of_attention() -> str:
    return loop("nn.functional.cross_entropy(model(x[part]) * model(x[part]).softmax(1).detach(), y[part])")


@quiet(SoftmaxBeforeCrossEntropy)
def the_logarithm_of_a_softmax() -> str:
    return loop("nn.functional.nll_loss(model(x[part]).log(), y[part])", ", nn.Softmax(-1)")


@quiet(SoftmaxBeforeCrossEntropy)
def a_loss_in_a_script() -> str:
    """TorchScript compiles functions that are observed; they can be saved, and compiled without a second graph."""
    script = """
    import copy, pickle

    assert pickle.loads(pickle.dumps(torch.softmax)) is torch.softmax
    graphs = []


    @torch.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    def probability(out):
        return torch.softmax(out, 1).max(1).values


    @torch.jit.script
    def criterion(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out, y) + 0 * torch.softmax(out, 1).sum()


    for part"""
    plain = loop("criterion(model(x[part]), y[part]) + nn.functional.cross_entropy(model(x[part]), y[part])")
    plain = plain.replace("optimizer.step()", "optimizer.step()\n        probability(torch.randn(4, 3))")
    plain = (
        plain.replace("torch.arange(240).split(8)", "torch.arange(240).split(2)")
        + "    assert len(graphs) == 1, len(graphs)\n"
    )
    return plain.replace("\n    for part", script, 1)
