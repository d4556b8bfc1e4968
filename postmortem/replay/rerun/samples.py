"""The samples of a batch: swapped, left out, compared with one another.

To test a sample it is replaced by a copy of a healthy one rather than dropped, which keeps shapes, batch statistics and
the stream of random numbers unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.errors import ReplayError
from postmortem.replay.rerun.graphs import graphs
from postmortem.replay.rerun.ragged import Ragged, ragged
from postmortem.replay.step.batches import clone_tensor, parts_of, tensor_map, tensors_in, with_parts
from postmortem.replay.trace.tensors import along

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from postmortem.replay.model import TrainStep


class Samples:
    """The samples of a batch. `size` is their number, 0 if the batch has none.

    Every tensor whose dimension 0 has the batch's size is per sample, except the `shared` keys; `sample_dim` names
    another dimension. Under accumulation, row j of micro-batch i is sample i * rows + j. A batch may also list its
    samples one by one (images of several sizes, their boxes), or hold them behind one another, with offsets, with
    lengths, packed, or as graphs.
    """

    def __init__(self, train_step: TrainStep, batch: Any) -> None:
        self._shared, self._dims = set(train_step.shared), dict(train_step.sample_dim)
        self._micro = list(batch) if train_step.accumulate > 1 and isinstance(batch, (list, tuple)) else None
        self._ragged = graphs(batch) or ragged(batch) if self._micro is None and not self._dims else None
        self._listed = number_listed(batch) if self._micro is None and self._ragged is None else 0
        if self._ragged is not None:
            self._listed = len(self._ragged.lengths)
        self.parts: list[Any] = self._micro or [batch]
        self.rows = self._listed or self._count(self._micro[0] if self._micro else batch)
        self.size = self.rows * len(self.parts) if train_step.divisible else 0
        self.can_be_dropped = True
        """False once those at fault are rows of another tensor, as graphs are where the batch holds their nodes."""

    def _count(self, batch: Any) -> int:
        parts = parts_of(batch)
        if parts is not None:
            for key, value in parts.items():
                if key in self._dims and hasattr(value, "shape"):
                    if not -len(value.shape) <= self._dims[key] < len(value.shape):
                        raise ReplayError(
                            f"sample_dim of {key!r} is {self._dims[key]}, but it has {len(value.shape)} dimensions"
                        )
                    return int(value.shape[self._dims[key]])
            tensors = [
                t for key, value in parts.items() if key not in self._shared for t in tensors_in(value) if t.dim()
            ]
        else:
            tensors = tensors_in(batch)
            tensors = tensors if tensors and tensors[0].dim() else []
        sizes = [t.shape[0] for t in tensors if t.dim()]
        if sizes[:1] == [1] and len(others := {n for n in sizes if n != 1}) == 1:
            return others.pop()  # the first tensor is a factor or a step number
        return sizes[0] if sizes else 0

    def _each(self, batch: Any, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
        """`batch` (one micro-batch) with `change(tensor, sample dimension)` applied to each tensor that has samples."""

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

    def take(self, batch: Any, source: Sequence[int], *, keep_lengths: bool = False) -> Any:
        """The batch whose sample i is sample `source[i]` of `batch`; a shorter `source` makes a smaller batch.

        Under accumulation, the length of `source` is a multiple of the number of micro-batches. keep_lengths: samples
        that lie behind one another are as long as those in whose place they are, see `Ragged.pick`.
        """
        if isinstance(self._ragged, Ragged):
            return self._ragged.pick(batch, source, keep_lengths=keep_lengths)
        if self._ragged is not None:
            return self._ragged.pick(batch, source)
        if self._listed:
            return pick_listed(batch, source, self._listed)
        if self._micro is None:
            return self._each(
                batch, lambda t, dim: t.index_select(dim, torch.tensor(source, dtype=torch.long, device=t.device))
            )
        rows = len(source) // len(batch)
        pooled: list[list[tuple[torch.Tensor, int]]] = []
        for micro in batch:
            pooled.append([])
            self._each(micro, lambda t, dim: pooled[-1].append((t, dim)) or t)  # type: ignore[func-returns-value]
        out = []
        for i, micro in enumerate(batch):
            wanted, at = source[i * rows : (i + 1) * rows], iter(range(len(pooled[i])))

            def pick(t: torch.Tensor, dim: int, wanted: Sequence[int] = wanted, at: Iterator[int] = at) -> torch.Tensor:
                k = next(at)
                rows = [pooled[s // self.rows][k][0].select(dim, s % self.rows) for s in wanted]
                return torch.stack(rows, dim)

            out.append(self._each(micro, pick))
        return type(batch)(out)

    # ---- one sample alone

    @property
    def stacks(self) -> bool:
        """True if the samples are rows of tensors, not listed one by one."""
        return not self._listed and self.rows > 0

    def micro_batches(self, batch: Any) -> list[Any]:
        """The micro-batches of a batch of this form; the batch itself without accumulation."""
        return list(batch) if self._micro is not None else [batch]

    def tensors(self, part: Any) -> list[tuple[torch.Tensor, int]]:
        """(tensor, dimension of the samples) of each tensor of a micro-batch that has samples."""
        found: list[tuple[torch.Tensor, int]] = []
        self._each(part, lambda t, dim: found.append((t, dim)) or t)  # type: ignore[func-returns-value]
        return found

    def rebuilder(self, part: Any) -> Callable[[Sequence[torch.Tensor]], Any]:
        """Makes a micro-batch of one sample from its row of each of `tensors(part)`."""

        def rebuilt(rows: Sequence[torch.Tensor]) -> Any:
            at = iter(rows)
            return self._each(part, lambda t, dim: next(at).unsqueeze(dim))

        return rebuilt

    def alone(self, batch: Any, index: int) -> Any:
        """The micro-batch that holds sample `index` only."""
        if self._listed:
            return self.take(batch, [index])
        part = self.micro_batches(batch)[index // self.rows]
        row = torch.tensor([index % self.rows])
        return self._each(part, lambda t, dim: t.index_select(dim, row.to(t.device)))

    def replace(
        self, bad: Collection[int], healthy: int | Sequence[int], *, keep_lengths: bool = False
    ) -> Callable[[Any], Any]:
        """Batch transform: the samples `bad` become copies of `healthy`; of several healthy ones, of the first in the
        same micro-batch, if there is one. keep_lengths: as of `take`."""
        fine = [healthy] if isinstance(healthy, int) else healthy
        near = {i // self.rows: i for i in reversed(fine)}
        inside = set(bad)
        source = [near.get(i // self.rows, fine[0]) if i in inside else i for i in range(self.size)]
        return lambda batch: self.take(batch, source, keep_lengths=keep_lengths)

    def replace_each(self, bad: Collection[int], healthy: Sequence[int]) -> Callable[[Any], Any]:
        """Batch transform: the samples `bad` become copies of `healthy`, each of another one as far as these go."""
        taken = {i: healthy[k % len(healthy)] for k, i in enumerate(sorted(bad))}
        source = [taken.get(i, i) for i in range(self.size)]
        return lambda batch: self.take(batch, source)

    def only(self, kept: Sequence[int]) -> Callable[[Any], Any]:
        """Batch transform: a batch of the same size that repeats the samples `kept`."""
        inside = set(kept)
        source = [i if i in inside else kept[i % len(kept)] for i in range(self.size)]
        return lambda batch: self.take(batch, source)

    def drop(self, bad: Collection[int]) -> Callable[[Any], Any]:
        """Batch transform: the samples `bad` are left out. The transform raises ValueError if that empties a
        micro-batch."""
        inside = set(bad)
        kept = [i for i in range(self.size) if i not in inside]
        return lambda batch: self.take(batch, kept) if self._micro is None else self._fewer(batch, kept)

    def _fewer(self, micros: Any, kept: Sequence[int]) -> Any:
        parts: list[list[int]] = [[] for _ in micros]
        for i in kept:
            parts[i // self.rows].append(i % self.rows)
        if not all(parts):
            raise ValueError("a micro-batch would be empty")
        return type(micros)(
            self._each(m, lambda t, dim, p=p: t.index_select(dim, torch.tensor(p, device=t.device)))  # type: ignore[misc]
            for m, p in zip(micros, parts, strict=True)
        )

    def few(self, kept: Sequence[int], healthy: int) -> Callable[[Any], Any]:
        """Batch transform: a batch of the samples `kept` alone, filled up with copies of `healthy` to a multiple of the
        number of micro-batches."""
        source = [*kept, *[healthy] * (-len(kept) % len(self.parts))]
        return lambda batch: self.take(batch, source)

    def bad_rows(self, batch: Any, bad: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
        """Samples in which `bad`, which makes a mask of a floating point tensor, is true somewhere."""
        found: set[int] = set()
        if self._listed:
            floats = ([t for t in of if t.is_floating_point() or t.is_complex()] for of in self._tensors(batch))
            return [i for i, of in enumerate(floats) if any(bool(bad(t).any()) for t in of)]
        for i, micro in enumerate(batch if self._micro is not None else [batch]):

            def look(t: torch.Tensor, dim: int, first: int = i * self.rows) -> torch.Tensor:
                if t.is_floating_point() or t.is_complex():
                    found.update(first + j for j in along(bad(t), dim))
                return t

            if self.rows:
                self._each(micro, look)
        return sorted(found)

    def odd(self, batch: Any) -> list[list[int]]:
        """Samples that stand out in the batch itself, by kind: non-finite; far beyond the others' range; zero where
        others are not. Kinds that hold more than half of the samples are left out."""

        largest = self._largest_of_listed(batch) if self._listed else self._largest(batch)
        found: list[set[int]] = [set(), set(), set()]
        for parts in zip(*largest, strict=False):
            of = torch.cat(parts)
            good = of[torch.isfinite(of)]
            middle = good.median() if len(good) else of.new_zeros(())
            for kind, odd in zip(found, (~torch.isfinite(of), of > 100 * middle, of == 0), strict=True):
                if middle > 0 or kind is found[0]:
                    kind.update(odd.nonzero().flatten().tolist())
        return [sorted(kind) for kind in found if 0 < len(kind) <= self.size // 2]

    def _largest(self, batch: Any) -> list[list[torch.Tensor]]:
        """[micro-batch][tensor] -> largest magnitude of each sample."""
        found: list[list[torch.Tensor]] = []
        for micro in batch if self._micro is not None else [batch]:
            here: list[torch.Tensor] = []

            def look(t: torch.Tensor, dim: int, here: list[torch.Tensor] = here) -> torch.Tensor:
                if t.numel():
                    here.append(_largest(t.detach().movedim(dim, 0)))
                return t

            self._each(micro, look)
            found.append(here)
        return found

    def _largest_of_listed(self, batch: Any) -> list[list[torch.Tensor]]:
        by_sample = [[_largest(t[None])[0] for t in tensors] for tensors in self._tensors(batch)]
        return [[torch.stack(column) for column in zip(*by_sample, strict=False)]]

    def _tensors(self, batch: Any) -> list[list[torch.Tensor]]:
        """The tensors of each sample, of a batch that lists its samples."""
        return [tensors_in(self.take(batch, [i])) for i in range(self.rows)]

    def guesses(self, shape: Sequence[int], rows: Mapping[int, list[int]], micro: int = 0) -> Iterator[list[int]]:
        """Samples that non-finite positions of a tensor may belong to, the likeliest reading first.

        shape: of the tensor. rows: per dimension, the indices with non-finite values. micro: the micro-batch.
        """
        n, offset = self.rows, micro * self.rows
        if self._ragged is not None and shape and 0 in rows:
            yield from self._ragged.samples_of(rows[0], shape[0])
        for d, size in enumerate(shape):
            if size == n and d in rows:
                yield [offset + i for i in rows[d]]
        if shape and n > 1 and 0 in rows and shape[0] > n and shape[0] % n == 0:
            yield sorted({offset + i // (shape[0] // n) for i in rows[0]})
            yield sorted({offset + i % n for i in rows[0]})


def _largest(rows: torch.Tensor) -> torch.Tensor:
    """The largest magnitude in each row; 0 for an empty row."""
    flat = (rows.abs() if rows.is_complex() else rows).double().abs().reshape(len(rows), -1)
    return flat.amax(1) if flat.shape[1] else flat.new_zeros(len(rows))


def number_listed(batch: Any) -> int:
    """How many samples a batch, or a part of it, lists one by one (images, targets); 0 if it does not."""
    return len(batch) if _by_rows(batch) else next((len(part) for part in _columns(batch) if _lists_samples(part)), 0)


def _columns(batch: Any) -> Iterable[Any]:
    if (parts := parts_of(batch)) is not None:
        return parts.values()
    return batch if isinstance(batch, (list, tuple)) else ()


def _by_rows(batch: Any) -> bool:
    """True if the entries of a batch are its samples: dicts and objects, or tuples in a list (a tuple of lists holds
    columns)."""
    if not _lists_samples(batch) or isinstance(batch[0], torch.Tensor):
        return False
    return not isinstance(batch[0], (list, tuple)) or isinstance(batch, list) or not any(map(_lists_samples, batch))


def _lists_samples(value: Any) -> bool:
    """True for a list of tensors of one kind with different shapes, or of dicts, objects and tuples whose tensors have
    no batch dimension in common."""
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or len(value) < 2:
        return False
    if all(isinstance(t, torch.Tensor) for t in value):
        return len({(t.dtype, t.dim()) for t in value}) == 1 and len({t.shape for t in value}) > 1
    if (
        any(not isinstance(v, (list, tuple)) and parts_of(v) is None for v in value)
        or len({type(v) for v in value}) > 1
    ):
        return False
    sizes = {t.shape[0] if t.dim() else 0 for v in value for t in tensors_in(v)}
    # views of one batch rather than samples of one length
    alike = len(sizes) == 1 and max(sizes) > 1 and len(value) <= max(sizes)
    return len({len(tensors_in(v)) for v in value}) == 1 and bool(sizes) and not alike


def pick_listed(batch: Any, source: Sequence[int], size: int) -> Any:
    """A batch that lists `size` samples, with sample `source[i]` in place i; samples that occur twice are copied."""

    def pick(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and len(value) == size:
            return type(value)(tensor_map(clone_tensor, value[i]) for i in source)
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size:
            return value.index_select(0, torch.tensor(source, dtype=torch.long, device=value.device))
        return value

    if _by_rows(batch):
        return pick(batch)
    parts = parts_of(batch)
    return type(batch)(map(pick, batch)) if parts is None else with_parts(batch, {k: pick(v) for k, v in parts.items()})
