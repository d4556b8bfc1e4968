"""The time of each part of a step: measured by the clock, or by events of the device that are read when complete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = {"forward": "seconds/forward", "backward": "seconds/backward", "optimizer": "seconds/optimizer"}


class Marks:
    """Moments of one tick, as (what ended there, moment). device: where the loss lies, None until it is known."""

    def __init__(self, device: torch.device | None) -> None:
        self._events = device is not None and device.type == "cuda"
        self.began = time.perf_counter()
        self._moments: list[tuple[str, Any]] = [("", self._now())]

    def ended(self, what: str) -> None:
        """A part has ended now."""
        self._moments.append((what, self._now()))

    def _now(self) -> Any:
        if not self._events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def columns(self, waited: float) -> dict[str, float]:
        """Seconds of each part, those of several backward passes summed. waited: for loaders, no part of the forward
        pass. On a device: only once what was queued in the tick has ended."""
        found: dict[str, float] = {}
        for name, seconds in self._parts():
            column = _NAMES[name]
            found[column] = found.get(column, 0.0) + seconds
        if _NAMES["forward"] in found:
            found[_NAMES["forward"]] = max(0.0, found[_NAMES["forward"]] - waited)
        return found

    def _parts(self) -> Iterator[tuple[str, float]]:
        for (_, begin), (name, end) in zip(self._moments, self._moments[1:], strict=False):
            yield name, begin.elapsed_time(end) / 1e3 if self._events else end - begin
