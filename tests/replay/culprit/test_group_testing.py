"""The samples at fault, from what points at them or by group testing, within the reruns allowed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from postmortem.replay.culprit.group_testing import find_samples  # noqa: E402
from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.rerun.samples import Samples  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("size", "bad"), [(128, {7, 100}), (64, {0}), (33, {32}), (16, {3, 4, 5})])
def test_bad_samples_are_found_by_halving(size: int, bad: set[int]) -> None:
    """Without any hint the bad samples of a large batch are found in a number of reruns that grows with its
    logarithm."""
    batch = {"x": torch.arange(size)}
    samples = Samples(TrainStep(None, None, None), batch)
    runs = 0

    def fails(make: Any) -> bool:
        nonlocal runs
        runs += 1
        return bool(bad & set(make(samples)(batch)["x"].tolist()))

    found, _ = find_samples(size, [], fails, budget=60)
    assert set(found or []) == bad
    assert runs <= 8 + 2 * len(bad) * size.bit_length()


def test_all_samples_bad_is_no_sample() -> None:
    """Where every sample fails alone, none is named, after a handful of reruns."""
    batch = {"x": torch.arange(50)}
    samples = Samples(TrainStep(None, None, None), batch)
    found, why = find_samples(50, [list(range(50))], lambda make: make(samples) is not None, budget=20)
    assert found is None
    assert "any sample that was tried" in why


@pytest.mark.parametrize("budget", [16, 36])
def test_several_bad_samples_of_a_large_batch(budget: int) -> None:
    """Five of 256: the set is found by small batches, whose whole cost stays within the budget, and nothing else is
    named."""
    bad = {3, 90, 91, 200, 255}
    batch = {"x": torch.arange(256)}
    samples, ran = Samples(TrainStep(None, None, None), batch), 0

    def fails(make: Any) -> bool:
        nonlocal ran
        rows = make(samples)(batch)["x"].tolist()
        ran += len(rows)
        return bool(bad & set(rows))

    found, how = find_samples(256, [], fails, budget)
    assert set(found or []) == bad
    assert "bisecting" in how
    assert ran <= budget * 256


def test_a_closer_look_of_which_the_first_reading_says_nothing() -> None:
    """Where the step ends at the first bad sample, the readings that do name one lead on to the next, whatever their
    place."""
    bad = {1, 4, 6}
    batch = {"x": torch.arange(8)}
    samples = Samples(TrainStep(None, None, None), batch)

    def fails(make: Any) -> bool:
        return bool(bad & set(make(samples)(batch)["x"].tolist()))

    found, how = find_samples(8, [[1]], fails, read=lambda known: [[], [min(bad - set(known))]], first_only=True)
    assert set(found or []) == bad
    assert "read from the non-finite rows" in how


def test_batches_of_another_size_that_do_not_run() -> None:
    """A step with the size of its batch written into it is searched by replacing."""
    bad = {20}
    batch = {"x": torch.arange(40)}
    samples = Samples(TrainStep(None, None, None), batch)

    def fails(make: Any) -> bool | None:
        rows = make(samples)(batch)["x"].tolist()
        return None if len(rows) != 40 else bool(bad & set(rows))

    assert find_samples(40, [], fails, 36)[0] == [20]


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_bad_samples_in_several_micro_batches(stage: str) -> None:
    """Under accumulation the rows read at the culprit are counted from the micro-batch that they are of, and no
    micro-batch is left out."""
    torch.manual_seed(0)
    bad = (3, 17, 18, 40, 63)
    x = torch.randn(64, 4)
    x[list(bad)] = 0
    model = nn.Linear(4, 4, bias=False)

    def step(m: Any, b: Any) -> Any:
        size = m(b["x"]).pow(2).sum(-1)
        return (size / size).mean() if stage == "forward" else size.sqrt().mean()

    micros = [{"x": part} for part in x.split(16)]
    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, micros, accumulate=4))
    assert (found.phase, found.samples) == (stage, bad)


def test_micro_batches_of_different_lengths() -> None:
    """Where the micro-batches are padded to lengths of their own, a sample is replaced by one beside it."""
    torch.manual_seed(0)
    micros = [{"x": torch.randn(4, length, 3)} for length in (5, 7)]
    micros[1]["x"][2] = 0
    model = nn.Linear(3, 3, bias=False)

    def step(m: Any, b: Any) -> Any:
        return m(b["x"]).pow(2).sum((1, 2)).sqrt().mean()

    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, micros, accumulate=2))
    assert found.samples == (6,)
    assert any("healthy sample instead" in line for line in found.how)


@pytest.mark.parametrize("lengths", [(5, 5), (5, 6)], ids=["alike", "padded apart"])
@pytest.mark.parametrize(("count", "rows", "micro"), [(4, 4, 2), (8, 2, 3), (4, 16, 1)])
def test_a_micro_batch_without_any_label(count: int, rows: int, micro: int, lengths: tuple[int, int]) -> None:
    """Where all labels of a micro-batch are ignored it fails as a whole: no sample of it is at fault, and leaving it
    empty cures nothing."""
    torch.manual_seed(0)
    model = nn.Linear(5, 7)
    micros = [
        {"x": torch.randn(rows, lengths[i % 2], 5), "y": torch.randint(0, 7, (rows, lengths[i % 2]))}
        for i in range(count)
    ]
    micros[0]["y"][0] = micros[micro]["y"][:] = -100

    def step(m: Any, b: Any) -> Any:
        return F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten(), ignore_index=-100)

    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, micros, accumulate=count))
    assert (found.op, found.samples) == ("nll_loss", None)
    assert any(f"micro-batch {micro} as a whole" in line for line in found.how)
    assert not [f.name for f in found.fixes if f.cured]


def test_rows_in_another_order_than_the_samples() -> None:
    """Samples that the step sorts are read where their gradients are in their own order again."""
    torch.manual_seed(0)
    x, rank = torch.randn(64, 4), torch.randperm(64)
    bad = (5, 6, 20, 41, 58)
    x[list(bad)] = 0
    model = nn.Linear(4, 4, bias=False)

    def step(m: Any, b: Any) -> Any:
        return m(b["x"][b["rank"].argsort()]).pow(2).sum(-1).add(1).log().sqrt().mean()

    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, {"x": x, "rank": rank}))
    assert (found.phase, found.op, found.samples) == ("backward", "sqrt", bad)
    assert any("read from the non-finite rows" in line for line in found.how)


def test_too_many_bad_samples_for_the_budget() -> None:
    """Where the reruns do not suffice no sample is named, which is said."""
    batch = {"x": torch.arange(256)}
    samples, bad = Samples(TrainStep(None, None, None), batch), set(range(1, 255, 3))
    found, how = find_samples(256, [], lambda make: bool(bad & set(make(samples)(batch)["x"].tolist())), 16)
    assert found is None
    assert "number of reruns" in how


def test_a_set_that_fails_only_together() -> None:
    """Of a pair neither fails alone: both are named, not the half that the search ends with."""
    batch = {"x": torch.arange(24)}
    samples = Samples(TrainStep(None, None, None), batch)
    found, how = find_samples(24, [], lambda make: {5, 17} <= set(make(samples)(batch)["x"].tolist()), 36)
    assert found == [5, 17]
    assert "together" in how


def test_any_that_are_enough_is_no_sample_in_particular() -> None:
    """A sum that overflows once the batch is large enough: some set of samples is needed, no particular one."""
    batch = {"x": torch.arange(64)}
    samples = Samples(TrainStep(None, None, None), batch)
    found, how = find_samples(64, [], lambda make: len(make(samples)(batch)["x"]) >= 37, 36)
    assert found is None
    assert "enough of them" in how


def test_many_that_look_odd_are_not_named_for_a_few_that_are_bad() -> None:
    """Where a large group stands out and holds the bad samples, those are found, or none is named: never the whole
    group."""
    batch = {"x": torch.arange(128)}
    samples, bad = Samples(TrainStep(None, None, None), batch), {1, 9, 33, 61}
    odd = [list(range(1, 100, 2))]

    def fails(make: Any) -> bool:
        return bool(bad & set(make(samples)(batch)["x"].tolist()))

    assert set(find_samples(128, [], fails, 36, odd=odd)[0] or []) == bad
    assert find_samples(128, [], fails, 3, odd=odd)[0] is None


def test_samples_that_stand_out() -> None:
    """Not finite, far beyond the others, zero where the others are not; of tensors of any type, across
    micro-batches."""
    x = torch.ones(8, 3)
    x[1, 2], x[6, 0] = float("nan"), -1e6
    length = torch.tensor([2, 3, 1, 0, 5, 2, 2, 1])
    whole = {"x": x, "length": length, "keep": length > 0}
    assert Samples(TrainStep(None, None, None), whole).odd(whole) == [[1], [6], [3]]
    halves = [{"x": x[:4], "length": length[:4]}, {"x": x[4:], "length": length[4:]}]
    assert Samples(TrainStep(None, None, None, accumulate=2), halves).odd(halves) == [[1], [6], [3]]


class Packed(nn.Module):
    """Works on all tokens of a batch in one row, so that no operator has a dimension of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)

    def forward(self, ids: Any, keep: Any) -> Any:
        tokens = self.embed(ids)[keep]
        return tokens / (tokens - self.embed.weight[0]).norm(
            dim=-1, keepdim=True
        )  # the norm's derivative, and 0 / 0, at token 0


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_packed_tokens_of_a_large_batch(stage: str) -> None:
    """Where the operator at fault has no rows of samples, the five samples with the odd token are found."""
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (256, 6))
    bad = (7, 60, 61, 130, 254)
    ids[list(bad), 2] = 0
    keep = torch.rand(256, 6) < 0.8
    keep[:, 2] = True
    model = Packed()

    def step(m: Any, b: Any) -> Any:
        if stage == "forward":
            return F.relu(m(b["ids"], b["keep"])).mean()
        tokens = m.embed(b["ids"])[b["keep"]]
        return ((tokens - m.embed.weight[0].detach()) ** 2).sum(-1).sqrt().mean()

    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step, {"ids": ids, "keep": keep}))
    assert (found.phase, found.samples) == (stage, bad)


def test_samples_that_only_let_the_step_run_are_not_at_fault() -> None:
    """Two equal samples make a zero distance; a third one, without which the loss has nothing to compare, is not
    named."""
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    x[4] = x[1]
    label = torch.tensor([0, 1, 0, 1, 1, 0])
    model = nn.Linear(4, 3)

    def step(m: Any, b: Any) -> Any:
        z, y = m(b["x"]), b["y"]
        i, j = torch.triu_indices(len(z), len(z), 1)
        d = (z[i] - z[j]).pow(2).sum(-1).sqrt()
        return d[y[i] == y[j]].mean() + F.relu(1 - d[y[i] != y[j]]).mean()

    culprit = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step, {"x": x, "y": label}))
    assert (culprit.phase, culprit.op, culprit.samples) == ("backward", "sqrt", (1, 4))


def test_two_samples_that_are_compared_with_each_other() -> None:
    """Copies of one healthy sample in the place of both fail as they do: each becomes a copy of another one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    anchors, others = torch.randn(2, 12, 6).unbind()
    others[5] = anchors[5]

    def step(m: Any, batch: Any) -> Any:
        a, b = m(batch).chunk(2)
        return (a - b).square().sum(1).sqrt().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = localize(TrainStep(model, optimizer, step, torch.cat([anchors, others])))
    assert (found.op, found.samples) == ("sqrt", (5, 17))
