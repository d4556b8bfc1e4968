"""The tracer: arm it before a step, disarm it afterwards, and ask where a non-finite tensor came from.

It does not depend on how the step is run, so it can be attached to any training code::

    from postmortem.replay.trace.origins import origins
    from postmortem.replay.trace.tracer import Tracer

    with Tracer() as trace:
        loss = compute_loss(); loss.backward(); optimizer.step()
    origins(trace.log, [trace.source(p.grad)])

A `TorchDispatchMode` sees every operator below autograd. Tensors are linked to the operator that last wrote their
storage. Each output is summed, as a sum is finite only if all terms are, and examined exactly only if the sum is
non-finite. Source lines and modules are taken from the Python frames of the forward pass; an operator of the backward
pass is mapped to its forward operator by autograd's sequence number.

On a CPU reading a sum costs nothing and one pass is enough. On a GPU each read would be a synchronisation, so the sums
stay there and are read once at the end; a second pass then examines the operators in `detail`.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from postmortem.replay.trace.calls import Call
from postmortem.replay.trace.operators import WRITES_OVER, OpInfo, flat, info_of, infos, written
from postmortem.replay.trace.places import CHECKPOINT, MODULE_CALL, NOWHERE, STOP, USER, Where, kind_of, kinds, where
from postmortem.replay.trace.records import Hit, TraceLog
from postmortem.replay.trace.tensors import NO_MEMORY, exact_bits, local, storage_key, sum_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from types import CodeType, FrameType

Within = Literal["all", "optimizers", "others"]

_INEXACT = {d for d in vars(torch).values() if isinstance(d, torch.dtype) and (d.is_floating_point or d.is_complex)}
# looked up once, as they are called for every operator
_graph_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_NO_PLACE = (None, 0, 0, None)


def _total(t: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor's values; the common case first, as this runs for every operator."""
    t = local(t)
    return (
        t.sum() if t.dtype == torch.float32 and t.layout == torch.strided and not t.is_nested else sum_of(values_of(t))
    )


def _nonfinite(sums: Iterable[tuple[int, torch.Tensor]]) -> list[int]:
    """The operators whose sum is not finite, in order; one read per device, as each is a synchronisation."""
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for index, total in sums:
        by_device.setdefault(total.device, []).append((index, total.to(torch.float64)))
    found = []
    for of_device in by_device.values():
        values = torch.stack([total for _, total in of_device]).tolist()
        found += [index for (index, _), value in zip(of_device, values, strict=True) if not math.isfinite(value)]
    return sorted(found)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See the module.

    detail: indices of the operators to examine; None examines all whose output looks non-finite.
    repair: index of an operator -> function that repairs its output in place.
    look: False only counts operators and repairs.
    deferred: keep the sums on the device and read them at the end; the operators found are then in `suspects`.
    origin_of: an operator of the backward pass whose forward operator and place are wanted as `origin`.
    within: examine only the steps of torch's optimizers, or only what is outside of them; the rest is counted.
    samples: batch size; of every non-finite output, the rows in the dimensions that it divides are recorded.
    """

    def __init__(
        self,
        *,
        detail: Collection[int] | None = None,
        repair: Mapping[int, Callable[[torch.Tensor], Any]] | None = None,
        look: bool = True,
        deferred: bool = False,
        origin_of: int | None = None,
        within: Within = "all",
        samples: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = TraceLog()
        self.suspects: list[int] = []
        self.stage = "step"
        self.passes = 0
        """Number of forward passes (of micro-batches or sub-steps) done; the caller that runs the step counts them."""
        self._detail, self._repair, self._look, self._deferred = detail, dict(repair or {}), look, deferred
        self._count = 0
        self._writer: dict[int, int] = {}
        self._names: list[str] = []
        self._places: list[tuple[CodeType | None, int, int, torch.nn.Module | None]] = []
        self._of_backward: dict[int, tuple[str | None, Where]] = {}
        self._by_seq: dict[tuple[int, int], int] = {}
        self._seq = _get_sequence_nr()
        self._main = threading.get_ident()
        self._task = -1
        self._sums: list[tuple[int, torch.Tensor]] = []
        self._stack: list[torch.nn.Module] = []
        self._handles: list[Any] = []
        self._optimizing = 0
        self._origin_of, self._within, self._samples = origin_of, within, samples
        self.origin: tuple[str | None, Where] = (None, NOWHERE)

    # ---- arming

    def __enter__(self) -> Tracer:
        self._count = 0  # it may be armed again, for a further run of the same step
        self._seq = _get_sequence_nr()
        if self._look:
            self._handles = [
                module_hooks.register_module_forward_pre_hook(lambda module, _: self._stack.append(module)),
                module_hooks.register_module_forward_hook(self._leave, always_call=True),
                register_optimizer_step_pre_hook(self._optimizer_starts),
                register_optimizer_step_post_hook(self._optimizer_ends),
            ]
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles = []
        if self._sums:
            self.suspects += _nonfinite(self._sums)
            self._sums = []

    def _leave(self, module: torch.nn.Module, *_: Any) -> None:
        while self._stack and self._stack.pop() is not module:
            pass

    def _optimizer_starts(self, _: Any, args: Any, kwargs: Any) -> Any:
        self._optimizing += 1  # an optimizer's step may call that of its base class
        self.stage = "optimizer"
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._lifted(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._lifted(args[1]), *args[2:]), kwargs
        return None

    def _lifted(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """The closure of an optimizer's step: what it runs is the step's forward and backward pass."""

        @functools.wraps(closure)
        def lifted(*args: Any, **kwargs: Any) -> Any:
            depth, self._optimizing, self.stage = self._optimizing, 0, "step"
            try:
                return closure(*args, **kwargs)
            finally:
                self._optimizing, self.stage = depth, "optimizer"

        return lifted

    def _optimizer_ends(self, *_: Any) -> None:
        self._optimizing -= 1
        self.stage = "optimizer" if self._optimizing > 0 else "step"

    # ---- one operator

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard costs as much as the tracing; compiled code runs eagerly while a tracer is armed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # runs for every operator: kept flat, and what is rare is in methods of its own
        kwargs = kwargs or {}
        index = self._count
        self._count += 1
        if not self._look or self._within == ("others" if self._optimizing else "optimizers"):
            return self._unexamined(index, func, args, kwargs)
        info = infos.get(func) or info_of(func)
        self._names.append(info.name)
        backward = _graph_task()
        if backward != -1 and self._task == -1:
            self._task = backward
        now = _get_sequence_nr()
        if now != self._seq:
            self._note_nodes(index, now)
        if info.view and _grad_enabled() and index != self._origin_of:
            self._places.append(_NO_PLACE)
            return func(*args, **kwargs)
        self._places.append(self._frame())
        if backward != -1 and _grad_enabled() and self._places[-1][0] is None:
            self._of_backward[index] = self._forward_of(backward)  # create_graph: a derivative that has a derivative
        tensors = flat(args, [])
        if kwargs:
            flat((v for k, v in kwargs.items() if k not in info.out), tensors)
        keys = [storage_key(t) for t in tensors]
        writer = self._writer
        sources = [-k for k in keys] if info.fresh else [writer.get(k, -k) for k in keys]
        earlier = self._before(index, info, args, tensors, sources) if info.mutates else None
        out = func(*args, **kwargs)
        if index == self._origin_of:
            self._note_origin(index, info, backward)
        if isinstance(out, torch.Tensor):
            outputs = [out]
        elif info.item:
            if isinstance(out, float) and not math.isfinite(out):
                self.log.items.append((index, out, sources[0]))
            return out
        else:
            outputs = written(info, args, kwargs, out)
        if info.undeclared:
            outputs = outputs + flat([args[i] for i in info.undeclared if i < len(args)], [])
        if index in self._repair:
            self._mend(index, outputs)
        if self._looks_odd(index, info, keys, outputs):
            self._record(Call(index, info, args, kwargs, tensors, sources, earlier or {}, outputs), backward)
        return out

    def _unexamined(self, index: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator that is only counted, and repaired if so asked."""
        self._names.append("")
        self._places.append(_NO_PLACE)
        out = func(*args, **kwargs)
        if index in self._repair:
            self._mend(index, written(info_of(func), args, kwargs, out))
        return out

    def _note_origin(self, index: int, info: OpInfo, task: int) -> None:
        self.origin = self._forward_of(task)
        if self.origin[0] is None:  # no derivative: what a hook did to the gradient
            self.origin = info.name, where(*self._places[index])

    def _mend(self, index: int, outputs: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for o in outputs:
                if o.dtype in _INEXACT:
                    self._repair[index](values_of(o))

    def _looks_odd(self, index: int, info: OpInfo, keys: list[int], outputs: list[torch.Tensor]) -> bool:
        """Links the outputs to their operator, and returns whether one of them seems to be non-finite."""
        writer, detail, odd = self._writer, self._detail, False
        fresh = info.mutates or info.fresh
        for o in outputs:
            key = storage_key(o)
            if not fresh and key in keys:
                continue  # a view
            if info.mutates and key in writer:
                self.log.rewrites[index] = writer[key]
            writer[key] = index
            if odd or info.unset or o.dtype not in _INEXACT or key == NO_MEMORY:
                continue
            if detail is not None:
                odd = index in detail
            elif self._deferred:
                self._sums.append((index, _total(o)))
            else:
                odd = not math.isfinite(_total(o).item())
        if odd:
            self.suspects.append(index)
        return odd

    def _note_nodes(self, index: int, now: int) -> None:
        thread = threading.get_ident()
        for seq in range(max(self._seq, now - 64) if now > self._seq else max(0, now - 1), now):
            self._by_seq[thread, seq] = index
        self._seq = now

    def _frame(self) -> tuple[CodeType | None, int, int, torch.nn.Module | None]:
        """The user's innermost frame, and the module that it runs for."""
        frame: FrameType | None = sys._getframe(2)
        deeper, known = False, kinds
        while frame is not None:
            code = frame.f_code
            kind = known.get(code)
            if kind is None:
                kind = kind_of(code)
            if kind == USER:
                module = self._stack[-1] if self._stack else None
                if not deeper and code.co_argcount and code.co_varnames[0] == "self" and code.co_name != "forward":
                    owner = frame.f_locals.get("self")
                    if isinstance(owner, torch.nn.Module):
                        module = owner
                return code, frame.f_lineno, frame.f_lasti, module
            if kind == STOP:
                break
            if kind == MODULE_CALL:
                deeper = True
            frame = frame.f_back
        return None, 0, 0, self._stack[-1] if self._stack else None

    def _before(
        self, index: int, info: OpInfo, args: Any, tensors: list[torch.Tensor], sources: list[int]
    ) -> dict[int, int]:
        """id(tensor) -> bits that it holds before an operator overwrites it; those of the step's own tensors are
        known."""
        blind = self._deferred or (self._detail is not None and index not in self._detail)
        out = {}
        if info.mutates == (0,) and isinstance(args[0], torch.Tensor):
            overwritten = [(args[0], sources[0])]
        else:
            mutated = {id(t) for t in flat([args[i] for i in info.mutates if i < len(args)], [])}
            overwritten = [(t, source) for t, source in zip(tensors, sources, strict=True) if id(t) in mutated]
        for t, source in overwritten:
            if info.name in WRITES_OVER or not (t.is_floating_point() or t.is_complex()):
                out[id(t)] = 0
            elif source >= 0:
                hit = self.log.hits.get(source)
                out[id(t)] = hit.out_bits if hit else 0
            else:
                looks_fine = blind or storage_key(t) == NO_MEMORY or math.isfinite(_total(t).item())
                out[id(t)] = 0 if looks_fine else exact_bits(t)
        return out

    def _record(self, call: Call, task: int) -> None:
        """Examines exactly what an operator with an odd output read and wrote."""
        hit = call.hit(where(*self._places[call.index]), backward=task != -1, stage=self.stage, passes=self.passes)
        if hit is None:
            self.suspects.pop()  # the sum overflowed, the values did not
            return
        if hit.backward:
            self._trace_back(hit, task)
        self.log.hits[call.index] = hit
        call.describe(hit, self._samples)

    def _trace_back(self, hit: Hit, task: int) -> None:
        """Gives an operator of the backward pass the place of its forward operator, unless it runs in the user's
        code."""
        if hit.where.file is not None and self._recomputing():
            hit.backward = False  # the forward pass of a checkpointed block, run again
            return
        name, there = self._forward_of(task)
        if hit.where.file is not None:
            hit.where = replace(hit.where, owner=there.owner or hit.where.owner)
        elif name is not None:
            hit.forward_name, hit.where = name, there

    def _forward_of(self, task: int) -> tuple[str | None, Where]:
        """The forward operator that created the autograd node which is running, and its place."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None, NOWHERE
        thread = self._main if task == self._task else threading.get_ident()
        forward = self._by_seq.get((thread, node._sequence_nr()))
        if forward is None:
            return None, NOWHERE
        return self._of_backward.get(forward) or (self._names[forward], where(*self._places[forward]))

    def _recomputing(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            kind = kind_of(frame.f_code)
            if kind == CHECKPOINT and frame.f_code.co_name != "backward":
                return True
            if kind == STOP and frame.f_code.co_filename != __file__:
                return False
            if kind == CHECKPOINT:
                return True
            frame = frame.f_back
        return False

    # ---- asking

    @property
    def count(self) -> int:
        """Number of operators seen since the tracer was armed."""
        return self._count

    def disown(self, tensors: Iterable[torch.Tensor]) -> None:
        """Treats these tensors as coming from outside the step, whichever operator wrote them."""
        for key in map(storage_key, tensors):
            self.log.hits.pop(self._writer.pop(key, -1), None)
            self.log.disowned.add(key)

    def source(self, t: torch.Tensor) -> int:
        """Index of the operator that wrote `t` last; the negative storage key if it came from outside the step."""
        key = storage_key(t)
        return self._writer.get(key, -key)

    def first_at(self, index: int) -> str:
        """Name of the first of the consecutive operators, up to this one, that the same expression ran (views have no
        place)."""
        here = first = index
        while here and self._places[here - 1] in (self._places[index], _NO_PLACE):
            here -= 1
            first = here if self._places[here] == self._places[index] else first
        return self._names[first]
