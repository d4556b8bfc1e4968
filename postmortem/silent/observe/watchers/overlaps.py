"""Samples: how many samples of an evaluation were also used for training."""

from __future__ import annotations

from collections import Counter
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


_Key = tuple[int, "Stack", int]
"""The model, where it is called, and how many trainings of it began before."""
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
        self._times: dict[_Key, dict[int, int]] = {}
        self._kept: dict[_Key, dict[int, torch.Tensor]] = {}
        self._training, self._rewritten = 0, False
        self._whole: set[int] = set()  # models whose samples hold whole numbers only, so far
        self._known: set[int] = set()
        self._pairs: dict[int, tuple[int, int]] = {}  # of two samples of one training batch, and of equal ones
        self.wrap(torch.nn.Module, "load_state_dict", self._written, always=True)
        for name in [n for n in vars(torch.nn.init) if n.endswith("_") and not n.startswith("_")]:
            self.wrap(torch.nn.init, name, self._written, always=True)

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._rewritten = self.recorder.steps > 0

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """Weights that were set anew and a new optimizer begin another training: the next fold of a validation."""
        self._training += self._rewritten
        self._rewritten = False

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)] if len(running) == 1 else []
        given = next(iter(tensors), None)
        if given is None or given.dim() < 2 or given.device.type == "meta" or not given.numel():
            return
        others = [t.detach() for t in tensors[1:] if t.dim() and t.shape[0] == given.shape[0] and t.numel()]
        where = () if self.recorder.grad else stack(_FRAMES)  # (): trained on
        key = self.recorder.modules.of(module)[0], where, self._training
        self._looks_whole(key[0], given)
        times, kept = self._times.setdefault(key, {}), self._kept.setdefault(key, {})
        rows = _rows(given.detach(), others) if len(times) < _MOST else []
        if not where:
            self._compare(key[0], [number for number, _ in rows])
        for number, row in rows:
            times[number] = times.get(number, 0) + 1
            if not others and len(kept) < _KEPT and number not in kept:
                kept[number] = row

    def _compare(self, root: int, rows: list[int]) -> None:
        pairs, equal = self._pairs.get(root, (0, 0))
        same = sum(n * (n - 1) // 2 for n in Counter(rows).values())
        self._pairs[root] = pairs + len(rows) * (len(rows) - 1) // 2, equal + same

    def _looks_whole(self, root: int, given: torch.Tensor) -> None:
        if root not in self._known:
            self._known.add(root)
            self._whole.add(root)
        if root in self._whole and given.is_floating_point() and not bool((given == given.round()).all()):
            self._whole.discard(root)

    def end(self) -> None:
        for (root, where, training), rows in self._times.items():
            trained = self._times.get((root, (), training), {})
            if where and trained:
                one, other = (list(self._kept[root, place, training].values()) for place in (where, ()))
                near = _near(one, other) if len(trained) == len(other) else 0
                shared, times = sum(row in trained for row in rows), sum(trained.values())
                pairs, equal = self._pairs.get(root, (0, 0))
                alike = min(1.0, len(trained) * equal / max(1, pairs)) if root in self._whole else 0.0
                self.recorder.add(Overlap(root, len(rows), shared, len(trained), times, near, len(one), where, alike))


def _rows(given: torch.Tensor, others: list[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """A number for each sample that is varied enough, the same for the same sample, and some of its elements.

    A sample is what all inputs of a model hold of it: the features of one user may go with many items.
    """
    some = _some(given)
    ordered = some.sort(1).values
    varied = ((ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1 >= _VARIED).nonzero().flatten().tolist()
    parts = [_some(other) for other in others]
    return [(hash((_bytes(some[i]), *(_bytes(part[i]) for part in parts))), some[i]) for i in varied]


def _some(given: torch.Tensor) -> torch.Tensor:
    """Some elements of the first samples."""
    flat = given[:_ROWS].reshape(min(given.shape[0], _ROWS), -1)
    return flat[:, :: max(1, flat.shape[1] // _ELEMENTS)].cpu().contiguous()


def _bytes(row: torch.Tensor) -> bytes:
    return row.contiguous().view(torch.uint8).numpy().tobytes()


def _near(evaluated: list[torch.Tensor], trained: list[torch.Tensor]) -> int:
    """How many samples are copies that were changed a little; numbers of tokens or categories have no distance."""
    samples = [*evaluated, *trained]
    if not evaluated or not trained or len({s.shape for s in samples}) > 1 or samples[0].numel() < _WIDTH:
        return 0
    if not samples[0].is_floating_point():
        return 0
    one, other = torch.stack(evaluated).float(), torch.stack(trained).float()
    scale = other.std(0).clamp(min=1e-12)
    distance = torch.cdist(one / scale, other / scale)
    usual = distance.median()
    close, around = (distance < _CLOSE * usual).sum(1), (distance < _AROUND * usual).sum(1)
    return int(((close > 0) & (close <= _COPIES) & (around == close)).sum())
