"""Samples: how many samples of an evaluation were also used for training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import Overlap
from postmortem.silent.observe.places import stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.facts import Stack
    from postmortem.silent.observe.recorder import Recorder

_FRAMES = 3
_ELEMENTS = 64
"""So many elements of a sample are compared."""
_ROWS = 4096
_MOST = 1 << 18
_VARIED = 6
"""A sample with fewer different values may be there twice by chance (a one-hot state, a short text)."""


_KEPT = 2048
_WIDTH = 8
"""Samples with fewer elements lie close to one another by chance."""
_CLOSE, _AROUND, _COPIES = 0.1, 0.35, 5
"""A copy that was changed a little: so close, by the usual distance, to so few samples, and to no others."""


@watcher
class Overlaps(Watcher):
    """Overlap."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._times: dict[tuple[int, Stack], dict[int, int]] = {}
        self._kept: dict[tuple[int, Stack], dict[int, torch.Tensor]] = {}

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        given = next((a for a in args if isinstance(a, torch.Tensor)), None) if len(running) == 1 else None
        if given is None or given.dim() < 2 or given.device.type == "meta" or not given.numel():
            return
        key = self.recorder.modules.of(module)[0], () if self.recorder.grad else stack(_FRAMES)  # (): trained on
        times, kept = self._times.setdefault(key, {}), self._kept.setdefault(key, {})
        for number, row in _rows(given.detach()) if len(times) < _MOST else ():
            times[number] = times.get(number, 0) + 1
            if len(kept) < _KEPT and number not in kept:
                kept[number] = row

    def end(self) -> None:
        for (root, where), rows in self._times.items():
            trained = self._times.get((root, ()), {})
            if where and trained:
                one, other = (list(self._kept[root, place].values()) for place in (where, ()))
                near = _near(one, other) if len(trained) == len(other) else 0
                shared, times = sum(row in trained for row in rows), sum(trained.values())
                self.recorder.add(Overlap(root, len(rows), shared, len(trained), times, near, len(one), where))


def _rows(given: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """A number for each sample that is varied enough, the same for the same sample, and some of its elements."""
    flat = given[:_ROWS].reshape(min(given.shape[0], _ROWS), -1)
    some = flat[:, :: max(1, flat.shape[1] // _ELEMENTS)].cpu().contiguous()
    ordered = some.sort(1).values
    varied = some[(ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1 >= _VARIED]
    return [(hash(row.view(torch.uint8).numpy().tobytes()), row) for row in varied]


def _near(evaluated: list[torch.Tensor], trained: list[torch.Tensor]) -> int:
    """How many samples are copies that were changed a little."""
    samples = [*evaluated, *trained]
    if not evaluated or not trained or len({s.shape for s in samples}) > 1 or samples[0].numel() < _WIDTH:
        return 0
    one, other = torch.stack(evaluated).float(), torch.stack(trained).float()
    scale = other.std(0).clamp(min=1e-12)
    distance = torch.cdist(one / scale, other / scale)
    usual = distance.median()
    close, around = (distance < _CLOSE * usual).sum(1), (distance < _AROUND * usual).sum(1)
    return int(((close > 0) & (close <= _COPIES) & (around == close)).sum())
