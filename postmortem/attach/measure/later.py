"""Reads values from a device without synchronising: they are copied asynchronously and read one or more ticks later."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(slots=True)
class _Copy:
    """Values of one device on their way. at: which of the values of the parcel they are."""

    at: list[int]
    host: torch.Tensor
    arrived: Any


@dataclass(slots=True)
class _Parcel:
    size: int
    copies: list[_Copy]
    then: Callable[[list[float]], None]


class _NextLook:
    """In place of a device's event, on a CPU: the values have arrived when they are asked for a second time."""

    def __init__(self) -> None:
        self._asked = False

    def query(self) -> bool:
        """Whether they have arrived."""
        asked, self._asked = self._asked, True
        return asked

    def synchronize(self) -> None:
        """Waits for them."""


class Later:
    """Parcels of values, which are opened in the order in which they were sent.

    deferred: values of a CPU wait for the next look as those of a device do; otherwise they are read at once.
    """

    def __init__(self, *, deferred: bool = False) -> None:
        self.deferred = deferred
        self._parcels: deque[_Parcel] = deque()

    def defers(self, value: torch.Tensor) -> bool:
        """Whether reading this value has to wait."""
        return self.deferred or value.device.type != "cpu"

    def send(self, values: Sequence[torch.Tensor], then: Callable[[list[float]], None]) -> None:
        """`then` gets these scalars, and vectors of several, as numbers, once they and all parcels before have
        arrived."""
        by_device: dict[torch.device, list[int]] = {}
        flat: list[torch.Tensor] = []
        size = 0
        with torch.no_grad():
            for value in values:
                vector = value.detach().reshape(-1)
                by_device.setdefault(vector.device, []).append(len(flat))
                flat.append(vector)
            starts = []
            for vector in flat:
                starts.append(size)
                size += vector.numel()
            copies = []
            for vectors in by_device.values():
                at = [starts[i] + k for i in vectors for k in range(flat[i].numel())]
                copies.append(self._copy(at, torch.cat([flat[i].double() for i in vectors])))
        self._parcels.append(_Parcel(size, copies, then))
        if not any(copy.arrived is not None for copy in copies):
            self.look()

    def _copy(self, at: list[int], values: torch.Tensor) -> _Copy:
        if values.device.type == "cpu":
            return _Copy(at, values, _NextLook() if self.deferred else None)
        module = getattr(torch, values.device.type)
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.device.type == "cuda")
        host.copy_(values, non_blocking=True)
        event = module.Event()
        event.record(module.current_stream(values.device))
        return _Copy(at, host, event)

    def look(self) -> None:
        """Opens what has arrived; waits for nothing."""
        while self._parcels and all(c.arrived is None or c.arrived.query() for c in self._parcels[0].copies):
            self._open(self._parcels.popleft())

    def drain(self) -> None:
        """Waits for everything, and opens it."""
        while self._parcels:
            parcel = self._parcels.popleft()
            for copy in parcel.copies:
                if copy.arrived is not None:
                    copy.arrived.synchronize()
            self._open(parcel)

    def forget(self) -> None:
        """Nothing that is on its way is opened."""
        self._parcels.clear()

    @staticmethod
    def _open(parcel: _Parcel) -> None:
        found = [0.0] * parcel.size
        for copy in parcel.copies:
            for i, value in zip(copy.at, copy.host.tolist(), strict=True):
                found[i] = value
        parcel.then(found)
