"""Batches whose samples lie behind one another in one tensor: values with offsets or lengths, packed sequences."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from postmortem.replay.step.batches import parts_of, with_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Ragged:
    """Where the samples of a batch lie. lengths: of each sample, in the order of the other tensors of the batch.
    offsets, ends, counts: the parts that hold where the samples begin (`ends`: and where the last one ends), and how
    long they are; of packed sequences there is none of these. values: the part that holds the rows, where there are
    others of that kind, as `others` describe them: the words of queries and those of documents."""

    lengths: tuple[int, ...]
    offsets: tuple[Any, ...] = ()
    ends: tuple[Any, ...] = ()
    counts: tuple[Any, ...] = ()
    values: Any = None
    others: tuple[Ragged, ...] = ()

    @property
    def total(self) -> int:
        """Rows of the values of all samples together."""
        return sum(self.lengths)

    def samples_of(self, rows: Iterable[int], total: int) -> Iterator[list[int]]:
        """The samples that rows of values with `total` rows belong to, of each part of the batch that has so many."""
        for part in (self, *self.others):
            if part.total == total:
                owner = [i for i, length in enumerate(part.lengths) for _ in range(length)]
                yield sorted({owner[row] for row in rows})

    def pick(self, batch: Any, source: Sequence[int], *, keep_lengths: bool = False) -> Any:
        """The batch whose sample i is sample `source[i]` of `batch`. keep_lengths: each place keeps its length, and has
        the rows of its new sample as often as they fit, for batches whose memory cannot grow."""
        for other in self.others:
            parts = parts_by_name(batch)
            mine = {key: parts[key] for key in (other.values, *other.offsets)}
            picked_of = other.pick(mine, source, keep_lengths=keep_lengths)
            batch = joined(batch, {**parts, **parts_by_name(picked_of)})
        elsewhere = {key for other in self.others for key in (other.values, *other.offsets)}
        ends = _ends(self.lengths)
        begins = [end - length for end, length in zip(ends, self.lengths, strict=True)]
        lengths = list(self.lengths) if keep_lengths else [self.lengths[i] for i in source]
        rows: list[int] = []
        for place, (sample, length) in enumerate(zip(source, lengths, strict=True)):
            of = sample if self.lengths[sample] else place  # an empty one has nothing to fill another with
            rows += [begins[of] + k % self.lengths[of] for k in range(length)]
        new_ends = _ends(lengths)

        def picked(key: Any, value: Any) -> Any:
            if isinstance(value, PackedSequence):
                return _picked(value, source)
            if not isinstance(value, torch.Tensor) or not value.dim() or key in elsewhere:
                return value
            if key in self.offsets:
                return value.new_tensor([end - length for end, length in zip(new_ends, lengths, strict=True)])
            if key in self.ends:
                return value.new_tensor([0, *new_ends])
            if key in self.counts:
                return value.new_tensor(lengths)
            holds = key == self.values or (self.values is None and value.shape[0] == self.total)
            if holds and self.total != len(self.lengths):
                return value.index_select(0, torch.tensor(rows, dtype=torch.long, device=value.device))
            if value.shape[0] == len(self.lengths):
                return value.index_select(0, torch.tensor(source, dtype=torch.long, device=value.device))
            return value

        return joined(batch, {key: picked(key, value) for key, value in parts_by_name(batch).items()})


def ragged(batch: Any) -> Ragged | None:
    """How the samples of a batch lie behind one another; None for batches of another form."""
    parts = parts_by_name(batch)
    packed = next((value for value in parts.values() if isinstance(value, PackedSequence)), None)
    if packed is not None:
        return Ragged(tuple(pad_packed_sequence(packed, batch_first=True)[1].tolist()))
    tensors = {key: value for key, value in parts.items() if isinstance(value, torch.Tensor) and value.dim()}
    sizes = {value.shape[0] for value in tensors.values()}
    whole = {key: value.tolist() for key, value in tensors.items() if _counts(value)}
    pairs = _pairs(tensors, whole)
    if len(pairs) > 1:
        return replace(pairs[0], others=tuple(pairs[1:]))
    for key, values in whole.items():
        for total in sorted(sizes, reverse=True):
            lengths = _lengths(key, values, total, sizes)
            if lengths is not None:
                return _named(lengths, whole)
    return None


def _pairs(tensors: Mapping[Any, torch.Tensor], whole: Mapping[Any, list[int]]) -> list[Ragged]:
    """Values, each followed by the offsets of its samples, of which some may be empty; all of the same samples."""
    found = []
    for values, offsets in itertools.pairwise(tensors):
        begins, total = whole.get(offsets), tensors[values].shape[0]
        if begins is None or begins[0] != 0 or begins[-1] > total or len(begins) == total:
            continue
        lengths = [b - a for a, b in itertools.pairwise([*begins, total])]
        if min(lengths) >= 0 and max(lengths) > 1:
            found.append(Ragged(tuple(lengths), offsets=(offsets,), values=values))
    alike = all(len(pair.lengths) == len(found[0].lengths) for pair in found)
    return found if alike else []


def _lengths(key: Any, values: list[int], total: int, sizes: set[int]) -> list[int] | None:
    """The lengths that a part with these numbers gives samples of `total` rows; None if it is nothing of the kind."""
    begins = values[0] == 0 and all(a < b for a, b in itertools.pairwise(values))
    if begins and values[-1] == total and len(values) - 1 != total:
        return [b - a for a, b in itertools.pairwise(values)]
    if begins and values[-1] < total and len(values) not in (1, total) and (len(sizes) == 2 or "offset" in str(key)):
        return [b - a for a, b in zip(values, [*values[1:], total], strict=True)]
    if sum(values) == total != len(values) > 1 and min(values) > 0:
        return values
    return None


def _named(lengths: list[int], whole: dict[Any, list[int]]) -> Ragged:
    ends = _ends(lengths)
    begins = [end - length for end, length in zip(ends, lengths, strict=True)]
    return Ragged(
        tuple(lengths),
        offsets=tuple(key for key, values in whole.items() if values == begins),
        ends=tuple(key for key, values in whole.items() if values == [0, *ends]),
        counts=tuple(key for key, values in whole.items() if values == lengths),
    )


def _ends(lengths: Sequence[int]) -> list[int]:
    return torch.tensor([0, *lengths]).cumsum(0).tolist()[1:]


def _counts(value: torch.Tensor) -> bool:
    return value.dim() == 1 and value.dtype in (torch.int32, torch.int64) and 1 < value.numel() <= 1 << 16


def _picked(packed: PackedSequence, source: Sequence[int]) -> PackedSequence:
    padded, lengths = pad_packed_sequence(packed, batch_first=True)
    rows = torch.tensor(source, dtype=torch.long)
    return pack_padded_sequence(padded[rows.to(padded.device)], lengths[rows], batch_first=True, enforce_sorted=False)


def parts_by_name(batch: Any) -> dict[Any, Any]:
    """The parts of a batch under their names, or their places."""
    if isinstance(batch, PackedSequence):
        return {0: batch}
    parts = parts_of(batch)
    if parts is None:
        parts = dict(enumerate(batch)) if isinstance(batch, (list, tuple)) else {}
    return parts


def joined(batch: Any, parts: dict[Any, Any]) -> Any:
    """A batch like this one, of other parts."""
    if isinstance(batch, PackedSequence):
        return parts[0]
    return with_parts(batch, parts) if parts_of(batch) is not None else type(batch)(parts.values())
