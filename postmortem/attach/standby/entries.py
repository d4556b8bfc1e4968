"""Finds the data tensors that enter a tick, and replaces them.

A program with a DataLoader is given batches. One without makes its tensors itself: they are what operators outside of
any module make of data alone, and what operators that a gradient will go through read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from postmortem.attach.standby.plan import Entered, Entry
from postmortem.replay.rerun.graphs import graphs
from postmortem.replay.rerun.ragged import ragged
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.trace.operators import flat, info_of
from postmortem.replay.trace.tensors import NO_MEMORY, exact_bits, storage_key

if TYPE_CHECKING:
    from postmortem.attach.standby.plan import Key

_BEGINS = ("lift_fresh", "slice", "split")
"""Views by which data enter a tick: `torch.tensor` of a list, and parts of a tensor that holds all of the data."""

_CAST = "_to_copy"


class _Places:
    """The place of each operator in a tick, which is the same in another precision: casts come and go with autocast, so
    that an operator is counted among those of its name, and a cast from the last operator on that is none."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._others = self._casts = 0

    def of(self, name: str) -> tuple[str, int, int]:
        """That of the next operator, which has this name."""
        if name == _CAST:
            self._casts += 1
            return name, self._others, self._casts
        self._others, self._casts = self._others + 1, 0
        self._seen[name] += 1
        return name, self._seen[name], 0


_graph_task = torch._C._current_graph_task_id


class Survey(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Armed around a tick, sees what enters it. passes: backward passes that have begun; updating: an optimizer steps,
    what it reads is no data; the caller sets both."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.passes = 0
        self.updating = False
        self._count = 0
        self._operators = _Places()
        self._depth = 0
        self._places: dict[int, set[Key]] = {}
        """Address of a batch's tensor, or of its memory -> the batches."""
        self._comes_from: dict[int, frozenset[Key]] = {}
        self._made: dict[int, list[Entry]] = {}
        """Memory of a tensor of data -> the operator outside of modules that wrote it, then those that made views."""
        self._inner: dict[int, list[Entry]] = {}
        """Memory of what a module computed of data alone, or of a cast of data -> the entries that it comes from."""
        self._failed: set[int] = set()
        """Memory of non-finite values that an operator made of finite data, and of what was made of those."""
        self._read: dict[tuple[int, int], Entry] = {}
        self._learned: set[tuple[int, int]] = set()
        """Those of `_read` that gradients go by: how many samples there are is told by these."""
        self._batches: dict[Key, int] = {}
        self._handles: list[Any] = []
        self._kept: list[torch.Tensor] = []  # so that no other tensor gets their memory

    def __enter__(self) -> Survey:
        def enter(*_: Any) -> None:
            self._depth += 1

        def leave(*_: Any) -> None:
            self._depth -= 1

        self._handles = [
            module_hooks.register_module_forward_pre_hook(enter),
            module_hooks.register_module_forward_hook(leave, always_call=True),
        ]
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def add(self, key: Key, batch: Any) -> None:
        """A batch that a loader has given."""
        for t in tensors_in(batch):
            self._kept.append(t)
            self._forget(storage_key(t))
            for place in {t.data_ptr(), storage_key(t)} - {0, NO_MEMORY}:
                self._places.setdefault(place, set()).add(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        index, self._count = self._count, self._count + 1
        place = self._operators.of(info_of(func).name)
        out = func(*args, **kwargs)
        if _graph_task() == -1 and not self.updating:
            with _disable_current_modes():
                self._look(index, place, func, flat(kwargs.values(), flat(args, [])), flat((out,), []))
        return out

    def _look(
        self,
        index: int,
        place: tuple[str, int, int],
        func: Any,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
    ) -> None:
        keys = [storage_key(t) for t in inputs]
        batches = {key for t, storage in zip(inputs, keys, strict=True) for key in self._of_batch(t, storage)}
        if any(t.requires_grad for t in inputs):
            for key in sorted(batches):
                self._batches.setdefault(key, self.passes)
            for t, storage in zip(inputs, keys, strict=True):
                if not t.requires_grad and t.dim():
                    read = {(e.index, e.at): e for e in self._entries_of(t, storage)}
                    self._read.update(read)
                    self._learned.update(read if torch.is_grad_enabled() else ())
            for t in outputs:
                self._forget(storage_key(t))
            return
        info = info_of(func)
        for at, t in enumerate(outputs):
            storage = storage_key(t)
            view = storage in keys and not info.mutates
            if view and info.name in _BEGINS and not self._depth and storage not in self._made:
                view = False  # the memory is older than the tick: what the program takes of it enters here
            if storage == NO_MEMORY or (view and (self._depth or storage not in self._made)):
                continue
            whole = self._made[storage][0].values if info.mutates and storage in self._made and not self._depth else t
            if not view:
                before = [e for t, key in zip(inputs, keys, strict=True) for e in self._entries_of(t, key)]
                failed = bool(before) and self._fails(inputs, keys, t)
                self._forget(storage)
                self._comes_from[storage] = frozenset(batches)
                if failed:
                    self._failed.add(storage)
                if self._depth or failed or (before and info.name == _CAST):
                    self._inner[storage] = before
                    continue
            if whole.dim() and whole.layout == torch.strided and not batches:
                offset, stride = int(whole.storage_offset()), whole.stride()
                made = Entry(index, info.name, at, self.passes, _alias(whole), offset, stride, place)
                self._made.setdefault(storage, []).append(made)

    def _entries_of(self, t: torch.Tensor, storage: int) -> list[Entry]:
        """The entries that a tensor without a gradient is, or was computed from."""
        made = self._made.get(storage)
        if made is None:
            return self._inner.get(storage, [])
        same = [e for e in made[1:] if e.values.data_ptr() == t.data_ptr() and e.values.shape == t.shape]
        return (same or made)[-1:]

    def _fails(self, inputs: list[torch.Tensor], keys: list[int], output: torch.Tensor) -> bool:
        """Whether non-finite values that an operator made come from finite data: it is a part of the step then, and its
        output no data."""
        if not exact_bits(output):
            return False
        return not self._failed.isdisjoint(keys) or not any(exact_bits(t) for t in inputs)

    def _forget(self, storage: int) -> None:
        self._failed.discard(storage)
        for known in (self._made, self._inner, self._comes_from):
            known.pop(storage, None)

    def _of_batch(self, t: torch.Tensor, storage: int) -> frozenset[Key] | set[Key]:
        if (found := self._comes_from.get(storage)) is not None:
            return found
        exact = self._places.get(t.data_ptr(), set())
        if len(exact) == 1:
            return exact
        shared = self._places.get(storage, set())
        return shared if len(shared) == 1 else set()

    def found(self) -> Entered:
        """What entered, with a copy of the values of tensors that the program made."""
        if self._batches:
            return Entered([(passes, key) for key, passes in self._batches.items()])
        entries = sorted(self._read.values(), key=lambda e: (e.index, e.at))
        learned = [e for e in entries if (e.index, e.at) in self._learned] or entries
        whole = tuple(e.values for e in entries)
        if graphs(whole) is None and ragged(whole) is None:
            rows = next((e.values.shape[0] for e in learned if e.values.shape[0] > 1), 0)
            entries = [e for e in entries if e.values.shape[0] == rows]
        return Entered([], [replace(e, values=e.values.detach().clone()) for e in entries])


class Substitutes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While armed, `values` take the place of what the operators of `entries` make."""

    refused = ""

    def __init__(self, entries: list[Entry], values: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators = _Places()
        self._at: dict[tuple[str, int, int], list[tuple[Entry, torch.Tensor]]] = {}
        for entry, value in zip(entries, values, strict=True):
            self._at.setdefault(entry.place, []).append((entry, value))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        info = info_of(func)
        place = self._operators.of(info.name)
        out = func(*args, **(kwargs or {}))
        if place not in self._at:
            return out
        with _disable_current_modes():
            for entry, value in self._at.pop(place):
                made = flat((out,), [])
                if entry.at >= len(made):
                    self.refused = f"another operator makes the data ({info.name} with {len(made)} outputs)"
                elif info.mutates:
                    if entry.values.shape != value.shape:
                        self.refused = "the data are written in place, their number of samples cannot be changed"
                    else:
                        memory = torch.empty(0, dtype=value.dtype, device=value.device)
                        memory.set_(made[entry.at].untyped_storage(), entry.offset, value.size(), entry.stride)
                        memory.copy_(value)
                elif isinstance(out, torch.Tensor):
                    out = _alias(value)
                else:
                    out = type(out)(_alias(value) if o is made[entry.at] else o for o in out)
        return out

    @property
    def missed(self) -> str:
        """Why some of the data were not replaced; empty where all were."""
        if self.refused or not self._at:
            return self.refused
        name = next(iter(self._at))[0]
        return f"an operator that makes data of the step did not run ({name})"


def _alias(t: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same memory: torch copies what an operator made if somebody else holds the tensor itself,
    by one more operator."""
    other = torch.empty(0, dtype=t.dtype, device=t.device)
    return other.set_(t.untyped_storage(), t.storage_offset(), t.size(), t.stride())
