"""Values are read when they have arrived, in the order in which they were sent."""

from __future__ import annotations

import pytest
import torch

from postmortem.attach.measure.later import Later


def test_on_a_cpu_at_once() -> None:
    """Scalars and vectors of several types come as they were sent."""
    found: list[list[float]] = []
    Later().send([torch.tensor(1.5), torch.tensor([2, 3]), torch.tensor(4.0, dtype=torch.float64)], found.append)
    assert found == [[1.5, 2.0, 3.0, 4.0]]


def test_deferred_in_order() -> None:
    """As on a device: nothing is waited for, each parcel keeps the values that it was sent with."""
    later = Later(deferred=True)
    found: list[list[float]] = []
    value = torch.tensor([1.0])
    later.send([value], found.append)
    later.look()
    assert found == []
    value.fill_(2.0)
    later.send([value], found.append)
    later.look()
    assert found == [[1.0]]
    later.drain()
    assert found == [[1.0], [2.0]]


def test_what_is_forgotten_is_not_opened() -> None:
    """After a fault nothing of the ticks after it is told."""
    later = Later(deferred=True)
    later.send([torch.ones(1)], lambda _: pytest.fail("opened"))
    later.forget()
    later.drain()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_device_without_waiting() -> None:
    """Sending and looking make no synchronising call."""
    later, found = Later(), []
    x = torch.rand(2000, 2000, device="cuda")
    later.send([x.sum()], found.append)
    later.drain()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            later.send([(x @ x).sum(), torch.ones(2, device="cuda")], found.append)
            later.look()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    later.drain()
    assert [len(values) for values in found] == [1, 3, 3, 3]
