"""Samples that lie behind one another in a batch: they are found, taken and named as samples."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from postmortem import TrainStep, localize
from postmortem.replay.culprit.group_testing import find_samples
from postmortem.replay.rerun.ragged import ragged
from postmortem.replay.rerun.samples import Samples

VALUES = torch.arange(1.0, 10.0)  # of 3, 2 and 4 rows
LABELS = torch.tensor([10, 11, 12])
FORMS = {
    "offsets": {"values": VALUES, "offsets": torch.tensor([0, 3, 5]), "labels": LABELS},
    "ends": {"values": VALUES, "cu_seqlens": torch.tensor([0, 3, 5, 9]), "labels": LABELS},
    "lengths": {"values": VALUES, "lengths": torch.tensor([3, 2, 4]), "labels": LABELS},
}
TAKEN = {
    "offsets": torch.tensor([0, 4, 6]),
    "ends": torch.tensor([0, 4, 6, 8]),
    "lengths": torch.tensor([4, 2, 2]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [dict, tuple])
def test_samples_are_taken(form: str, kind: type) -> None:
    """With their rows; offsets, ends and lengths follow."""
    batch = FORMS[form] if kind is dict else tuple(FORMS[form].values())
    samples = Samples(TrainStep(None, None, None), batch)
    assert samples.size == 3
    taken = samples.take(batch, [2, 1, 1])
    values, where, labels = taken.values() if kind is dict else taken
    assert values.tolist() == [6, 7, 8, 9, 4, 5, 4, 5]
    assert torch.equal(where, TAKEN[form])
    assert labels.tolist() == [12, 11, 11]
    assert next(iter(samples.guesses((9, 4), {0: [4, 8], 1: [0]}))) == [1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_replaced_at_their_length(form: str) -> None:
    """Where the program writes into memory of its own, the number of rows cannot change."""
    batch = FORMS[form]
    samples = Samples(TrainStep(None, None, None), batch)
    taken = samples.replace([0, 2], 1, keep_lengths=True)(batch)
    values, where, labels = taken.values()
    assert values.tolist() == [4, 5, 4, 4, 5, 4, 5, 4, 5]
    assert torch.equal(where, list(batch.values())[1])
    assert labels.tolist() == [11, 11, 11]


def test_a_sample_whose_number_of_rows_cannot_change() -> None:
    """It is confirmed with rows of another one, as many as it has."""
    values = VALUES.clone()
    values[4] = torch.inf
    batch = {**FORMS["offsets"], "values": values}
    samples = Samples(TrainStep(None, None, None), batch)

    def fails(make) -> bool | None:
        changed = make(samples)(batch)["values"]
        return None if changed.shape != values.shape else bool(changed.isinf().any())

    found, trail = find_samples(3, [[1]], fails)
    assert found == [1]
    assert "with a healthy sample instead, the step does not fail" in trail


@pytest.mark.parametrize("how", ["before the step", "by a constant"])
def test_weights_of_a_bag(how: str) -> None:
    """An infinity among them is no mask: they are named, not the layer that makes NaN of it, and the sample by the
    offsets."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"bag": torch.nn.EmbeddingBag(50, 8, mode="sum"), "head": torch.nn.Linear(8, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lengths = torch.tensor([2, 5, 3, 4, 1, 3])
    ids, offsets = torch.randint(0, 49, (18,)), torch.cat([torch.tensor([0]), lengths.cumsum(0)[:-1]])
    weights, goal = torch.rand(18), torch.randn(6)
    ids[11] = 49
    if how == "before the step":
        weights[11] = torch.inf

    def step(model, batch):
        ids, offsets, goal = batch
        mine = torch.where(ids == 49, torch.inf, weights) if how == "by a constant" else weights
        return (model["head"](model["bag"](ids, offsets, per_sample_weights=mine)).squeeze(1) - goal).square().mean()

    found = localize(TrainStep(model, optimizer, step, (ids, offsets, goal)))
    assert found.samples == (3,)
    assert ("where(" in found.code) == (how == "by a constant")
    assert "per_sample_weights" in found.code or how == "by a constant"
    assert found.cause == ("forward-op" if how == "by a constant" else "bad-input")


def test_words_of_queries_and_of_documents() -> None:
    """Two parts with offsets of their own; a sample may be empty in one of them."""
    batch = {
        "query": torch.tensor([1, 2, 3, 4]),
        "query_at": torch.tensor([0, 2, 2]),
        "document": torch.tensor([5, 6, 7, 8, 9]),
        "document_at": torch.tensor([0, 1, 4]),
        "clicked": torch.tensor([0, 1, 1]),
    }
    samples = Samples(TrainStep(None, None, None), batch)
    assert samples.size == 3
    taken = samples.take(batch, [2, 1, 0, 0])
    assert {key: value.tolist() for key, value in taken.items()} == {
        "query": [3, 4, 1, 2, 1, 2],
        "query_at": [0, 2, 2, 4],
        "document": [9, 6, 7, 8, 5, 5],
        "document_at": [0, 1, 4, 5],
        "clicked": [1, 1, 0, 0],
    }
    assert next(iter(samples.guesses((5, 4), {0: [1, 2]}))) == [1]
    assert next(iter(samples.guesses((3, 4), {0: [1]}))) == [1]


def test_packed_sequences() -> None:
    """Samples of one are its sequences, in the order of the labels."""
    padded = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [4.0, 5.0, 6.0]]).unsqueeze(-1)
    batch = pack_padded_sequence(padded, torch.tensor([2, 1, 3]), batch_first=True, enforce_sorted=False), LABELS
    samples = Samples(TrainStep(None, None, None), batch)
    assert samples.size == 3
    packed, labels = samples.take(batch, [2, 0])
    rows, lengths = pad_packed_sequence(packed, batch_first=True)
    assert (rows.squeeze(-1).tolist(), lengths.tolist()) == ([[4, 5, 6], [1, 2, 0]], [3, 2])
    assert labels.tolist() == [12, 10]


@pytest.mark.parametrize(
    "batch",
    [
        (torch.randn(4, 3), torch.tensor([0, 1, 2, 3])),
        (torch.randn(4, 3), torch.tensor([1, 1, 1, 1])),
        (torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2]), torch.randn(3, 8)),
        torch.randn(4, 3),
    ],
    ids=["labels", "labels of one class", "boxes of images", "a tensor"],
)
def test_other_batches_are_not(batch: object) -> None:
    """Whole numbers that are classes."""
    assert ragged(batch) is None


def test_the_sample_of_a_row_is_named() -> None:
    """The row with the zero is the seventh, of sample 2; with a healthy sample in its place the step does not fail."""
    values = torch.rand(40, 4) + 0.5
    values[23] = 0.0
    ends = torch.tensor([0, 7, 9, 18, 22, 30, 40])
    table = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.01)

    def step(model, batch):
        rows, where, goal = batch
        sums = torch.stack([model(rows[a:b].log()).mean() for a, b in itertools.pairwise(where)])
        return (sums - goal).square().mean()

    found = localize(TrainStep(table, optimizer, step, (values, ends, torch.zeros(6))))
    assert found.op == "log"
    assert found.samples == (4,)
