"""Which samples of the batch are at fault: replaced by healthy ones, the step is cured.

A sample is replaced by a copy of a healthy one rather than dropped: that keeps shapes, batch statistics and the
stream of random numbers as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay._tensors import along
from postmortem.replay.state import tensor_map, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from postmortem.replay.model import TrainStep


class Samples:
    """The samples of a batch. `size` is their number, 0 where the batch has none to speak of.

    Per sample is every tensor whose dimension 0 has the batch's size, except the `shared` keys; `sample_dim` names
    another dimension. Under accumulation row j of micro-batch i is sample i * rows + j.
    """

    def __init__(self, train_step: TrainStep, batch: Any) -> None:
        self._shared, self._dims = set(train_step.shared), dict(train_step.sample_dim)
        self._micro = list(batch) if train_step.accumulate > 1 and isinstance(batch, (list, tuple)) else None
        self.rows = self._count(self._micro[0] if self._micro else batch)
        self.size = self.rows * (len(self._micro) if self._micro else 1) if train_step.divisible else 0

    def _count(self, batch: Any) -> int:
        if isinstance(batch, dict):
            for key, value in batch.items():
                if key in self._dims and isinstance(value, torch.Tensor):
                    return int(value.shape[self._dims[key]])
            for key, value in batch.items():
                tensors = [t for t in tensors_in(value) if t.dim()] if key not in self._shared else []
                if tensors:
                    return int(tensors[0].shape[0])
            return 0
        tensors = tensors_in(batch)
        return int(tensors[0].shape[0]) if tensors and tensors[0].dim() else 0

    def _each(self, batch: Any, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
        """`batch` (no micro-batches) with `change(tensor, sample dimension)` for each tensor that has samples."""

        def plain(t: torch.Tensor) -> torch.Tensor:
            return change(t, 0) if t.layout == torch.strided and t.dim() and t.shape[0] == self.rows else t

        if isinstance(batch, dict):
            out = tensor_map(lambda t: t, batch)
            for key, value in batch.items():
                if key in self._dims and isinstance(value, torch.Tensor):
                    out[key] = change(value, self._dims[key])
                elif key not in self._shared:
                    out[key] = tensor_map(plain, value)
            return out
        return tensor_map(plain, batch)

    def take(self, batch: Any, source: Sequence[int]) -> Any:
        """The batch whose sample i is sample `source[i]` of `batch`; a shorter `source` makes a smaller batch."""
        if self._micro is None:
            return self._each(batch, lambda t, dim: t.index_select(dim, torch.tensor(source, dtype=torch.long, device=t.device)))
        if len(source) != self.size:
            kept = set(source)
            parts = [[j for j in range(self.rows) if i * self.rows + j in kept] for i in range(len(batch))]
            if not all(parts):
                raise ValueError("a micro-batch would be left empty")
            return type(batch)(
                self._each(m, lambda t, dim, p=p: t.index_select(dim, torch.tensor(p, device=t.device)))  # type: ignore[misc]
                for m, p in zip(batch, parts, strict=True)
            )
        pooled: list[list[tuple[torch.Tensor, int]]] = []
        for micro in batch:
            pooled.append([])
            self._each(micro, lambda t, dim: pooled[-1].append((t, dim)) or t)  # type: ignore[func-returns-value]
        out = []
        for i, micro in enumerate(batch):
            wanted, at = source[i * self.rows : (i + 1) * self.rows], iter(range(len(pooled[i])))

            def pick(t: torch.Tensor, dim: int, wanted: Sequence[int] = wanted, at: Iterator[int] = at) -> torch.Tensor:
                k = next(at)
                rows = [pooled[s // self.rows][k][0].select(dim, s % self.rows) for s in wanted]
                return torch.stack(rows, dim)

            out.append(self._each(micro, pick))
        return type(batch)(out)

    def replace(self, bad: Collection[int], healthy: int) -> Callable[[Any], Any]:
        """Batch transform: the samples `bad` become copies of `healthy`."""
        source = [healthy if i in bad else i for i in range(self.size)]
        return lambda batch: self.take(batch, source)

    def only(self, kept: Sequence[int]) -> Callable[[Any], Any]:
        """Batch transform of the same size that holds only the samples `kept`, over and over."""
        inside = set(kept)
        source = [i if i in inside else kept[i % len(kept)] for i in range(self.size)]
        return lambda batch: self.take(batch, source)

    def drop(self, bad: Collection[int]) -> Callable[[Any], Any]:
        """Batch transform: the samples `bad` are left out."""
        source = [i for i in range(self.size) if i not in bad]
        return lambda batch: self.take(batch, source)

    def bad_rows(self, batch: Any, bad: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
        """Samples in which `bad` (a mask of a floating point tensor) is true somewhere."""
        found: set[int] = set()
        for i, micro in enumerate(batch if self._micro is not None else [batch]):

            def look(t: torch.Tensor, dim: int, first: int = i * self.rows) -> torch.Tensor:
                if t.is_floating_point() or t.is_complex():
                    found.update(first + j for j in along(bad(t), dim))
                return t

            if self.rows:
                self._each(micro, look)
        return sorted(found)

    def guesses(self, shape: Sequence[int], rows: Mapping[int, list[int]], micro: int = 0) -> Iterator[list[int]]:
        """Samples that the bad positions of a tensor may belong to, the likeliest reading first."""
        n, offset = self.rows, micro * self.rows
        for d, size in enumerate(shape):
            if size == n and d in rows:
                yield [offset + i for i in rows[d]]
        if shape and n > 1 and 0 in rows and shape[0] > n and shape[0] % n == 0:
            yield sorted({offset + i // (shape[0] // n) for i in rows[0]})
            yield sorted({offset + i % n for i in rows[0]})


def find_samples(
    size: int, guesses: Sequence[list[int]], fails: Callable[[Callable[[Samples], Any]], bool | None], budget: int = 16
) -> tuple[list[int] | None, str]:
    """The samples at fault, and how they were found; None where it is all of them, or no sample in particular.

    At most about `budget` reruns are made. `fails(make)` runs the step on the batch that `make(samples)` transforms and
    says whether it still fails, None where it could not be run.
    """
    left = budget

    def run(make: Callable[[Samples], Any]) -> bool | None:
        nonlocal left
        left -= 1
        return fails(make)

    every = range(size)
    for guess in guesses:
        rest = [i for i in every if i not in guess]
        if not guess or not rest:
            continue
        healthy = rest[0]
        cured = run(lambda s, g=guess, h=healthy: s.replace(g, h)) is False  # type: ignore[misc]
        if not cured and run(lambda s, g=guess: s.drop(g)) is False:  # type: ignore[misc]
            return guess, "read at the culprit; without them the step is fine"
        if not cured:
            continue
        if len(guess) == 1:
            return guess, "read at the culprit; replaced by a healthy sample, the step is fine"
        if len(guess) <= 4:
            alone = [i for i in guess if run(lambda s, g=guess, h=healthy, i=i: s.replace([x for x in g if x != i], h))]  # type: ignore[misc]
            if alone and alone != guess and run(lambda s, a=alone, h=healthy: s.replace(a, h)) is False:  # type: ignore[misc]
                return alone, "read at the culprit; each of them alone makes the step fail, none of the others does"
        return guess, "read at the culprit; replaced by a healthy sample, the step is fine"
    if size < 2:
        return None, "a batch of one"
    probes = sorted({0, size // 2, size - 1})
    alone = [i for i in probes if run(lambda s, i=i: s.only([i]))]  # type: ignore[misc]
    if len(alone) == len(probes):
        if run(lambda s: s.drop(range(size // 2, size))) and run(lambda s: s.drop(range(size // 2))):
            return None, "each sample that was tried alone makes the step fail"
        return _together(size, run, lambda: left)
    healthy = next(i for i in probes if i not in alone)
    bad: list[int] = []
    todo = [([i for i in every if i != healthy], True)]
    while todo:
        part, sure = todo.pop()
        if left <= 0:
            return None, "not narrowed down within the number of reruns allowed"
        inside = set(part)
        if not sure and not run(lambda s, p=inside, h=healthy: s.replace([i for i in every if i not in p], h)):  # type: ignore[misc]
            continue
        if len(part) == 1:
            bad += part
            continue
        half = len(part) // 2
        head = set(part[:half])
        fails_there = run(lambda s, p=head, h=healthy: s.replace([i for i in every if i not in p], h))  # type: ignore[misc]
        todo.append((part[half:], not fails_there))  # a part that fails although its first half does not fails by its second
        if fails_there:
            todo.append((part[:half], True))
    bad.sort()
    if bad and len(bad) < size - 1 and run(lambda s: s.replace(bad, healthy)) is False:
        for i in bad if 1 < len(bad) <= 4 else ():  # copies of a healthy sample may have made one look bad
            fewer = [b for b in bad if b != i]
            if fewer and left > 0 and run(lambda s, f=fewer: s.replace(f, healthy)) is False:  # type: ignore[misc]
                bad = fewer
        return bad, "found by halving the batch"
    return _together(size, run, lambda: left, healthy)


def _together(
    size: int, run: Callable[[Callable[[Samples], Any]], bool | None], left: Callable[[], int], healthy: int | None = None
) -> tuple[list[int] | None, str]:
    """A smallest set of samples that fails together and without which the step is fine, by leaving others out.

    Delta debugging (Zeller and Hildebrandt 2002). The others become copies of the `healthy` sample; where none is known
    they are dropped: the fault may lie between samples, where copies would make new ones.
    """

    def without(out: Collection[int]) -> Callable[[Samples], Any]:
        return lambda s: s.drop(out) if healthy is None else s.replace(out, healthy)

    def fails(kept: list[int]) -> bool:
        return bool(run(without([i for i in range(size) if i not in kept])))

    kept, parts = list(range(size)), 2
    while len(kept) > 2 and left() > 0:
        length = -(-len(kept) // parts)
        rests = [kept[:i] + kept[i + length :] for i in range(0, len(kept), length)]
        smaller = next((rest for rest in rests if left() > 0 and fails(rest)), None)
        if smaller is not None:
            kept, parts = smaller, max(2, min(parts - 1, len(smaller)))
        elif parts >= len(kept):
            break
        else:
            parts = min(len(kept), 2 * parts)
    if len(kept) < size and left() > -2 and run(without(kept)) is False:
        return kept, "only together do they make the step fail; found by leaving others out"
    return None, "no sample in particular"
