"""Norms and sums of many tensors."""

from __future__ import annotations

import math

import pytest
import torch

from postmortem.attach.measure.reductions import all_finite, norms, plain


def test_norms_of_mixed_types() -> None:
    """Those of 16 bits do not overflow; integers and empty tensors have none; sparse values are summed first."""
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([3.0, 1.0]), (5,), check_invariants=True)
    tensors = [torch.full((400,), 300.0).half(), torch.tensor([3.0, 4.0]), torch.ones(2).long(), torch.empty(0), twice]
    assert [float(n) for n in norms(plain(tensors))] == pytest.approx([6000.0, 5.0, 4.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_of_many(bad: float) -> None:
    """In any place and type; infinities of both signs do not cancel out."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        t = torch.ones(3, 5, dtype=dtype)
        assert all_finite([torch.ones(2), t])
        t[1, 2] = bad
        assert not all_finite([torch.ones(2), t, -t])


def test_a_sum_that_overflows_is_no_fault() -> None:
    """Every value is finite."""
    assert all_finite([torch.full((10,), 3e38)])
