"""Which samples of the batch are at fault: replaced by healthy ones, the step is cured.

A sample is replaced by a copy of a healthy one rather than dropped: that keeps shapes, batch statistics and the
stream of random numbers as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay._tensors import along
from postmortem.replay.batches import parts_of, tensor_map, tensors_in, with_parts

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
        parts = parts_of(batch)
        if parts is not None:
            for key, value in parts.items():
                if key in self._dims and hasattr(value, "shape"):
                    return int(value.shape[self._dims[key]])
            for key, value in parts.items():
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

        parts = parts_of(batch)
        if parts is None:
            return tensor_map(plain, batch)
        for key, value in parts.items():
            if key in self._dims:
                parts[key] = tensor_map(lambda t, dim=self._dims[key]: change(t, dim), value)  # type: ignore[misc]
            elif key not in self._shared:
                parts[key] = tensor_map(plain, value)
        return with_parts(batch, parts)

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

    def odd(self, batch: Any) -> list[list[int]]:
        """Samples that stand out in the batch itself: not finite; far beyond the others' range; zero where the others are not."""

        largest: list[list[torch.Tensor]] = []  # of each micro-batch, of each of its tensors, by sample
        for micro in batch if self._micro is not None else [batch]:
            here: list[torch.Tensor] = []

            def look(t: torch.Tensor, dim: int, here: list[torch.Tensor] = here) -> torch.Tensor:
                if t.numel():
                    rows = t.detach().movedim(dim, 0)
                    here.append((rows.abs() if rows.is_complex() else rows).double().abs().reshape(len(rows), -1).amax(1))
                return t

            self._each(micro, look)
            largest.append(here)
        found: list[set[int]] = [set(), set(), set()]
        for parts in zip(*largest, strict=False):
            of = torch.cat(parts)
            good = of[torch.isfinite(of)]
            middle = good.median() if len(good) else of.new_zeros(())
            for kind, odd in zip(found, (~torch.isfinite(of), of > 100 * middle, of == 0), strict=True):
                if middle > 0 or kind is found[0]:
                    kind.update(odd.nonzero().flatten().tolist())
        return [sorted(kind) for kind in found if 0 < len(kind) <= self.size // 2]

    def guesses(self, shape: Sequence[int], rows: Mapping[int, list[int]], micro: int = 0) -> Iterator[list[int]]:
        """Samples that the bad positions of a tensor may belong to, the likeliest reading first."""
        n, offset = self.rows, micro * self.rows
        for d, size in enumerate(shape):
            if size == n and d in rows:
                yield [offset + i for i in rows[d]]
        if shape and n > 1 and 0 in rows and shape[0] > n and shape[0] % n == 0:
            yield sorted({offset + i // (shape[0] // n) for i in rows[0]})
            yield sorted({offset + i % n for i in rows[0]})
