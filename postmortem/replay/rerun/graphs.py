"""Batches of graphs: the nodes of all graphs in one tensor, the graph of each node in another, edges by the nodes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.rerun.ragged import joined, parts_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_MOST = 1 << 20
"""Nodes, or edges; larger batches are not taken apart."""


@dataclass(frozen=True)
class Graphs:
    """Where the graphs of a batch lie. lengths: nodes of each graph. owner: the part that holds the graph of each node.
    edges: parts that hold nodes by their number, and `of_edge` the graph of each edge; ends: parts that hold where the
    nodes of each graph end."""

    lengths: tuple[int, ...]
    owner: Any
    edges: tuple[Any, ...]
    of_edge: tuple[int, ...]
    ends: tuple[Any, ...]

    @property
    def _begins(self) -> list[int]:
        return list(itertools.accumulate((0, *self.lengths)))

    def samples_of(self, rows: Iterable[int], total: int) -> Iterator[list[int]]:
        """The graphs that rows of a tensor with `total` rows belong to: nodes, or edges."""
        if total == sum(self.lengths):
            of_node = [i for i, length in enumerate(self.lengths) for _ in range(length)]
            yield sorted({of_node[row] for row in rows})
        elif total == len(self.of_edge):
            yield sorted({self.of_edge[row] for row in rows})

    def pick(self, batch: Any, source: Sequence[int]) -> Any:
        """The batch whose graph i is graph `source[i]` of `batch`."""
        begins, lengths = self._begins, [self.lengths[i] for i in source]
        moved = [new - begins[i] for i, new in zip(source, itertools.accumulate((0, *lengths)), strict=False)]
        nodes = [node for i in source for node in range(begins[i], begins[i + 1])]
        edges_of: dict[int, list[int]] = {}
        for edge, graph in enumerate(self.of_edge):
            edges_of.setdefault(graph, []).append(edge)
        edges = [edge for i in source for edge in edges_of.get(i, [])]
        shift = [by for i, by in zip(source, moved, strict=True) for _ in edges_of.get(i, [])]

        def picked(key: Any, value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.dim():
                return value
            if key == self.owner:
                return value.new_tensor([j for j, length in enumerate(lengths) for _ in range(length)])
            if key in self.ends:
                return value.new_tensor([0, *itertools.accumulate(lengths)])
            if key in self.edges:
                return _taken(value, edges, value.dim() - 1) + value.new_tensor(shift)
            rows = {sum(self.lengths): nodes, len(self.lengths): list(source), len(self.of_edge): edges}
            return _taken(value, rows[value.shape[0]], 0) if value.shape[0] in rows else value

        return joined(batch, {key: picked(key, value) for key, value in parts_by_name(batch).items()})


def graphs(batch: Any) -> Graphs | None:
    """How the graphs of a batch lie behind one another; None for batches of another form."""
    parts = {k: v for k, v in parts_by_name(batch).items() if isinstance(v, torch.Tensor) and v.dim()}
    for key, value in parts.items():
        lengths = _lengths(value)
        others = [t.shape[0] for k, t in parts.items() if k != key]
        if lengths is None or len(lengths) not in others or value.shape[0] not in others:
            continue
        found = _edges(parts, key, value, len(lengths))
        if found is not None:
            ends = [0, *itertools.accumulate(lengths)]
            return Graphs(
                tuple(lengths), key, *found, tuple(k for k, t in parts.items() if t.dim() == 1 and t.tolist() == ends)
            )
    return None


def _lengths(value: torch.Tensor) -> list[int] | None:
    """Nodes of each graph, if this holds the graph of each node: 0 as often as the first one has nodes, then 1, …"""
    if value.dtype not in (torch.int32, torch.int64) or value.dim() != 1 or not 1 < len(value) <= _MOST:
        return None
    steps = value.diff()
    if int(value[0]) or not bool(((steps == 0) | (steps == 1)).all()) or not 1 < int(value[-1]) + 1 < len(value):
        return None
    return torch.bincount(value).tolist()


def _edges(
    parts: Mapping[Any, torch.Tensor], key: Any, owner: torch.Tensor, n: int
) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """(the parts that hold the nodes of edges, the graph of each edge); None without any, or where that is not sure."""
    found: dict[Any, torch.Tensor] = {}
    for name, t in parts.items():
        pairs = t.dim() == 2 and t.shape[0] == 2
        alone = t.dim() == 1 and t.shape[0] not in (len(owner), n, n + 1)
        whole = t.dtype in (torch.int32, torch.int64) and name != key and 0 < t.numel() <= _MOST
        if whole and (pairs or alone) and int(t.min()) >= 0 and int(t.max()) < len(owner):
            found[name] = owner[t.long()]
    rows = [row for of in found.values() for row in (of if of.dim() == 2 else of[None])]
    if len(rows) < 2 or any(row.shape != rows[0].shape or not torch.equal(row, rows[0]) for row in rows):
        return None
    size = len(rows[0])
    if size in (len(owner), n) and any(t.shape[0] == size for k, t in parts.items() if k not in found and k != key):
        return None  # a tensor with as many rows may be of nodes, of graphs or of edges
    return tuple(found), tuple(rows[0].tolist())


def _taken(value: torch.Tensor, rows: Sequence[int], dim: int) -> torch.Tensor:
    return value.index_select(dim, torch.tensor(rows, dtype=torch.long, device=value.device))
