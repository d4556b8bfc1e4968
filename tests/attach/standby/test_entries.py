"""The data that a program without a DataLoader makes in a step: which tensors, and where they are found again."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.attach.standby.entries import Substitutes, Survey  # noqa: E402

pytestmark = pytest.mark.torch


def a_step(weight: Any, dtype: Any) -> Any:
    """Data are made before and after operators that autocast casts for."""
    x = torch.rand(4, 3)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        first = torch.nn.functional.linear(x, weight)
        y = (x[:, :1] > 0.5).to(torch.bfloat16)
        return ((1 - y) * first).sum() + torch.nn.functional.linear(x * 2, weight).sum()


def test_the_data_are_replaced_in_another_precision() -> None:
    """Without autocast its casts are gone; each tensor of data is still found, and given the value meant for it."""
    weight = torch.ones(1, 3, requires_grad=True)
    with Survey() as survey:
        a_step(weight, torch.bfloat16)
    entries = survey.found().entries
    assert len(entries) >= 2
    values = [torch.full_like(e.values, float(i)) for i, e in enumerate(entries)]
    with Substitutes(entries, values) as substitutes, Survey() as again:
        a_step(weight, None)
    assert not substitutes.missed
    found = {e.place: e.values for e in again.found().entries}
    assert all(bool((found[e.place] == i).all()) for i, e in enumerate(entries) if e.place in found)
    assert len(found.keys() & {e.place for e in entries}) >= 2


def test_what_does_not_run_is_told() -> None:
    """A step that goes another way makes other data."""
    weight = torch.ones(1, 3, requires_grad=True)
    with Survey() as survey:
        a_step(weight, None)
    with Substitutes(survey.found().entries, [e.values for e in survey.found().entries]) as substitutes:
        torch.zeros(3)
    assert "did not run" in substitutes.missed


def test_samples_are_counted_where_gradients_go() -> None:
    """A vector that is read without gradients, as an observation in a rollout, does not tell how many there are."""
    weight = torch.ones(1, 3, requires_grad=True)
    with Survey() as survey:
        with torch.no_grad():
            torch.nn.functional.linear(torch.rand(3), weight)
        torch.nn.functional.linear(torch.rand(1, 3), weight)
    assert survey.found().entries == []


def test_what_fails_outside_of_a_module_is_no_data() -> None:
    """Nor is what is made of it: the data are those that it was made of, and the step is where it fails."""
    weight = torch.ones(1, 3, requires_grad=True)
    with Survey() as survey:
        x, gains = torch.rand(4, 3), torch.tensor([[2.0], [2.0], [2.0], [2.0]])
        odd = -((gains - gains.mean()) / gains.std())  # 0/0
        (torch.nn.functional.linear(x, weight) * odd).sum()
    entries = survey.found().entries
    assert len(entries) >= 2
    assert all(bool(torch.isfinite(e.values).all()) for e in entries)


def test_samples_of_several_rows() -> None:
    """Words with the offsets of their texts: no tensor has a row for each text, and all of them are data."""
    weight = torch.ones(9, 3, requires_grad=True)
    with Survey() as survey:
        words, offsets = torch.tensor([1, 2, 3, 4, 5, 6, 7]), torch.tensor([0, 3, 5])
        torch.nn.functional.embedding_bag(words, weight, offsets, mode="sum")
    assert [e.values.tolist() for e in survey.found().entries] == [[1, 2, 3, 4, 5, 6, 7], [0, 3, 5]]
