"""Batches of graphs: a graph is a sample, with its nodes and its edges."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from postmortem import TrainStep, localize
from postmortem.replay.rerun.graphs import graphs
from postmortem.replay.rerun.samples import Samples

OF_NODE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
EDGES = torch.tensor([[0, 1, 3, 5, 6, 7], [1, 2, 4, 6, 7, 8]])


def a_batch(**other: Any) -> dict[str, Any]:
    """Three graphs of 3, 2 and 4 nodes, with 2, 1 and 3 edges."""
    nodes = torch.arange(9.0)[:, None]
    return {"x": nodes, "edge_index": EDGES, "of_node": OF_NODE, "y": torch.tensor([10.0, 11.0, 12.0]), **other}


def test_graphs_are_taken() -> None:
    """Their nodes and edges come with them; edges hold the new numbers of the nodes."""
    batch = a_batch(weight=torch.arange(6.0), ptr=torch.tensor([0, 3, 5, 9]))
    samples = Samples(TrainStep(None, None, None), batch)
    assert samples.size == 3
    taken = {key: value.tolist() for key, value in samples.take(batch, [1, 2, 1]).items()}
    assert taken == {
        "x": [[3], [4], [5], [6], [7], [8], [3], [4]],
        "edge_index": [[0, 2, 3, 4, 6], [1, 3, 4, 5, 7]],
        "of_node": [0, 0, 1, 1, 1, 1, 2, 2],
        "y": [11, 12, 11],
        "weight": [2, 3, 4, 5, 2],
        "ptr": [0, 2, 6, 8],
    }
    assert next(iter(samples.guesses((9, 1), {0: [3]}))) == [1]
    assert next(iter(samples.guesses((6,), {0: [5]}))) == [2]


def test_edges_as_two_parts() -> None:
    """Where they begin, and where they end."""
    batch = {"x": torch.arange(9), "src": EDGES[0], "dst": EDGES[1], "of": OF_NODE, "y": torch.zeros(3)}
    found = graphs(batch)
    assert found is not None
    assert found.edges == ("src", "dst")
    assert found.pick(batch, [2, 0])["dst"].tolist() == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.rand(9, 2), "y": OF_NODE},
        {"x": torch.rand(9, 2), "of": OF_NODE, "y": torch.rand(3)},
        a_batch(edge_index=EDGES.flip(1)[:, :3].flip(0) * 0 + torch.tensor([[0, 3, 5], [3, 5, 0]])),
        a_batch(of_node=torch.tensor([0, 0, 0, 2, 2, 1, 1, 1, 1])),
    ],
    ids=["classes", "no edges", "edges between graphs", "not in order"],
)
def test_other_batches(batch: Any) -> None:
    """Nothing is taken for graphs that is not sure to be."""
    assert graphs(batch) is None


def test_the_graph_at_fault_is_named() -> None:
    """Of one whose nodes are all masked, the mean is 0/0; without the graph the step is finite."""
    mask = torch.ones(9)
    mask[3:5] = 0
    model = torch.nn.Linear(1, 1)

    def step(net: Any, batch: Any) -> Any:
        h = net(
            batch["x"]
            + torch.zeros_like(batch["x"]).index_add_(0, batch["edge_index"][1], batch["x"][batch["edge_index"][0]])
        )
        n = len(batch["y"])
        weight = batch["mask"][:, None]
        total = torch.zeros(n, 1).index_add_(0, batch["of_node"], h * weight)
        mean = total / torch.zeros(n, 1).index_add_(0, batch["of_node"], weight)
        return (mean[:, 0] - batch["y"]).square().mean()

    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), 0.001), step, a_batch(mask=mask)))
    assert (found.op, found.samples) == ("div", (1,))
    assert [f.cured for f in found.fixes if f.name == "drop_sample"] == [True]


def test_a_graph_that_cannot_be_left_out() -> None:
    """Nothing tells which nodes are its own; the row of the culprit names it, which no rerun confirms."""
    slots = torch.tensor([0, 1, 2, 8, 9, 10, 11])  # of 4 rows for each of 3 graphs
    model = torch.nn.Linear(1, 1)

    def step(net: Any, batch: Any) -> Any:
        dense = torch.full((12, 1), -torch.inf).index_copy(0, batch["slot"], net(batch["x"]))
        return (torch.logsumexp(dense.view(3, 4), 1) - batch["y"]).square().mean()

    batch = {"x": torch.arange(7.0)[:, None], "slot": slots, "y": torch.zeros(3)}
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), 0.001), step, batch))
    assert found.samples == (1,)
    assert any("not confirmed by a rerun" in how for how in found.how)
    assert not [f for f in found.fixes if f.name == "drop_sample"]
