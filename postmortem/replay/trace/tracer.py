"""The tracing engine: arm it before a step, disarm it afterwards, ask where a non-finite tensor came from.

It knows nothing of how the step is run, so it can be attached to any training code::

    with Tracer() as trace:
        loss = compute_loss(); loss.backward(); optimizer.step()
    trace.births([trace.source(p.grad)])

One `TorchDispatchMode` sees every operator below autograd. Tensors are linked to the operator that last wrote their
storage. Each output is summed (a sum is finite only if its terms are), and looked at exactly only where the sum is
not. Source lines and modules are taken from the Python frames in the forward pass; an operator of the backward pass
is mapped to its forward operator by autograd's sequence number.

On a CPU reading a sum costs nothing and one pass is enough. On a GPU it would be a synchronisation, so the sums
are kept there and read once at the end; a second pass then looks exactly at the operators in `detail`.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from postmortem.replay.trace.operators import ABSORBERS, WRITES_OVER, OpInfo, info_of, infos
from postmortem.replay.trace.origins import births
from postmortem.replay.trace.places import CHECKPOINT, MODULE_CALL, NOWHERE, STOP, USER, Where, kind_of, kinds
from postmortem.replay.trace.records import Birth, Hit, TensorView
from postmortem.replay.trace.tensors import (
    INF,
    NAN,
    NO_MEMORY,
    along,
    exact_bits,
    has_rows,
    rows_of,
    shape_of,
    statistics,
    storage_key,
    sum_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from types import CodeType, FrameType

Within = Literal["all", "optimizers", "others"]

_INEXACT = {d for d in vars(torch).values() if isinstance(d, torch.dtype) and (d.is_floating_point or d.is_complex)}
_graph_task, _grad_enabled = torch._C._current_graph_task_id, torch.is_grad_enabled  # looked up once: they are asked per operator
_NO_PLACE = (None, 0, 0, None)


def _flat(values: Iterable[Any], out: list[torch.Tensor]) -> list[torch.Tensor]:
    for v in values:
        if isinstance(v, torch.Tensor):
            out.append(v)
        elif isinstance(v, (list, tuple)):
            _flat(v, out)
    return out


def _written(info: OpInfo, args: Any, out: Any) -> list[torch.Tensor]:
    """The tensors that an operator returned, or where it returns nothing, wrote into."""
    return _flat((out,), []) or _flat([args[i] for i in info.mutates if i < len(args)], [])


def _total(t: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor's values, the usual kind of tensor first."""
    return t.sum() if t.dtype == torch.float32 and t.layout == torch.strided and not t.is_nested else sum_of(values_of(t))


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


def _odd_numbers(values: Iterable[Any]) -> list[float]:
    return [v for v in values if isinstance(v, float) and not math.isfinite(v)]


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See the module. `detail`: indices of operators to look at exactly, all that look odd where None. `repair`:
    operator index -> function that mends its output in place. `look=False` only counts operators and repairs.
    `origin_of`: an operator of the backward pass whose forward operator and place are wanted as `origin`.
    `within`: look only inside the steps of torch's optimizers, or only outside of them; the other operators are counted.
    `samples`: a batch size; of every output that is not finite the rows are noted in the dimensions that it divides."""

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
        self.hits: dict[int, Hit] = {}
        self.suspects: list[int] = []
        self.stage = "step"
        self.passes = 0
        """How many forward passes are done, of micro-batches or sub-steps: whoever runs the step counts them."""
        self._detail, self._repair, self._look, self._deferred = detail, dict(repair or {}), look, deferred
        self._count = 0
        self._writer: dict[int, int] = {}
        self.disowned: set[int] = set()
        self._names: list[str] = []
        self._places: list[tuple[CodeType | None, int, int, torch.nn.Module | None]] = []
        self._of_backward: dict[int, tuple[str | None, Where]] = {}
        self.rewrites: dict[int, int] = {}
        self._by_seq: dict[tuple[int, int], int] = {}
        self._seq = _get_sequence_nr()
        self._main = threading.get_ident()
        self._task = -1
        self.items: list[tuple[int, float, int]] = []
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

    def _optimizer_starts(self, *_: Any) -> None:
        self._optimizing += 1  # an optimizer's step may call that of its base class
        self.stage = "optimizer"

    def _optimizer_ends(self, *_: Any) -> None:
        self._optimizing -= 1
        self.stage = "optimizer" if self._optimizing > 0 else "step"

    # ---- one operator

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard costs as much as the tracing; compiled code runs eagerly while a tracer is armed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        index = self._count
        self._count += 1
        if not self._look or self._within == ("others" if self._optimizing else "optimizers"):
            self._names.append("")
            self._places.append(_NO_PLACE)
            out = func(*args, **kwargs)
            if index in self._repair:
                self._mend(index, _written(info_of(func), args, out))
            return out
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
        tensors = _flat(args, [])
        if kwargs:
            _flat((v for k, v in kwargs.items() if k not in info.out), tensors)
        keys = [storage_key(t) for t in tensors]
        writer = self._writer
        sources = [-k for k in keys] if info.fresh else [writer.get(k, -k) for k in keys]
        earlier = self._before(index, info, args, tensors, sources) if info.mutates else None
        out = func(*args, **kwargs)
        if index == self._origin_of:
            self.origin = self._forward_of(backward)
            if self.origin[0] is None:  # no derivative: what a hook did to the gradient
                self.origin = info.name, Where(*self._places[index])
        if isinstance(out, torch.Tensor):
            outputs = [out]
        elif info.item:
            if isinstance(out, float) and not math.isfinite(out):
                self.items.append((index, out, sources[0]))
            return out
        else:
            outputs = _written(info, args, out)
        if info.untold:
            outputs = outputs + _flat([args[i] for i in info.untold if i < len(args)], [])
        if index in self._repair:
            self._mend(index, outputs)
        fresh = info.mutates or info.fresh
        for o in outputs:
            key = storage_key(o)
            if not fresh and key in keys:
                continue  # a view
            if info.mutates and key in writer:
                self.rewrites[index] = writer[key]
            writer[key] = index
            if not info.unset and o.dtype in _INEXACT and key != NO_MEMORY:
                self._check(o, index)
        if self.suspects and self.suspects[-1] == index:
            self._record(index, info, args, kwargs, backward, tensors, sources, earlier, outputs)
        return out

    def _mend(self, index: int, outputs: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for o in outputs:
                if o.dtype in _INEXACT:
                    self._repair[index](values_of(o))

    def _check(self, o: torch.Tensor, index: int) -> None:
        if self._detail is not None:
            if index in self._detail and (not self.suspects or self.suspects[-1] != index):
                self.suspects.append(index)
            return
        if self.suspects and self.suspects[-1] == index:
            return
        total = _total(o)
        if self._deferred:
            self._sums.append((index, total))
        elif not math.isfinite(total.item()):
            self.suspects.append(index)

    def _note_nodes(self, index: int, now: int) -> None:
        thread = threading.get_ident()
        for seq in range(max(self._seq, now - 64) if now > self._seq else max(0, now - 1), now):
            self._by_seq[thread, seq] = index
        self._seq = now

    def _frame(self) -> tuple[CodeType | None, int, int, torch.nn.Module | None]:
        """The innermost frame of the user, and the module that it works for."""
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

    def _before(self, index: int, info: OpInfo, args: Any, tensors: list[torch.Tensor], sources: list[int]) -> dict[int, int]:
        """id(tensor) -> bits that it holds before an operator overwrites it; what the step made itself is known."""
        blind = self._deferred or (self._detail is not None and index not in self._detail)
        out = {}
        if info.mutates == (0,) and isinstance(args[0], torch.Tensor):
            overwritten = [(args[0], sources[0])]
        else:
            written = {id(t) for t in _flat([args[i] for i in info.mutates if i < len(args)], [])}
            overwritten = [(t, source) for t, source in zip(tensors, sources, strict=True) if id(t) in written]
        for t, source in overwritten:
            if info.name in WRITES_OVER or not (t.is_floating_point() or t.is_complex()):
                out[id(t)] = 0
            elif source >= 0:
                hit = self.hits.get(source)
                out[id(t)] = hit.out_bits if hit else 0
            else:
                looks_fine = blind or storage_key(t) == NO_MEMORY or math.isfinite(_total(t).item())
                out[id(t)] = 0 if looks_fine else exact_bits(t)
        return out

    def _record(
        self,
        index: int,
        info: OpInfo,
        args: Any,
        kwargs: Any,
        task: int,
        tensors: list[torch.Tensor],
        sources: list[int],
        earlier: dict[int, int] | None,
        outputs: list[torch.Tensor],
    ) -> None:
        """Looks exactly at what an odd operator read and wrote."""
        written = [TensorView(index, exact_bits(o), shape_of(o), str(o.dtype)) for o in outputs]
        if not any(w.bits for w in written):
            self.suspects.pop()  # the sum overflowed, the values did not
            return
        changed = earlier or {}
        read = [
            TensorView(s, changed[id(t)] if id(t) in changed else exact_bits(t), shape_of(t), str(t.dtype))
            for t, s in zip(tensors, sources, strict=True)
        ]
        hit = Hit(
            index=index,
            name=info.name,
            where=Where(*self._places[index]),
            backward=task != -1,
            stage=self.stage,
            inputs=read,
            outputs=written,
            constants=_odd_numbers([*args, *kwargs.values()]),
            half=any(o.dtype in (torch.float16, torch.bfloat16) for o in outputs),
            passes=self.passes,
        )
        if hit.backward:
            self._trace_back(hit, task)
        self.hits[index] = hit
        seen = 0
        for t in read:
            seen |= t.bits
        if not seen & NAN:
            new = NAN if hit.out_bits & NAN else INF
            if not seen or hit.out_bits & NAN or hit.name in ABSORBERS:
                self._describe(hit, new, tensors, changed, outputs)
        if self._samples > 1 and not hit.rows:
            o = next(o for v, o in zip(hit.outputs, outputs, strict=True) if v.bits)
            dims = [d for d, size in enumerate(o.shape) if size and size % self._samples == 0] if has_rows(o) else []
            if dims:
                bad = ~torch.isfinite(o)
                hit.shape, hit.rows = tuple(o.shape), {d: along(bad, d) for d in dims}

    def _describe(self, hit: Hit, new: int, tensors: list[torch.Tensor], changed: dict[int, int], outputs: list[torch.Tensor]) -> None:
        """Statistics and rows of an operator at which non-finite values begin."""
        for view, t in zip(hit.inputs, tensors, strict=True):
            if id(t) not in changed:
                view.stats = statistics(t)
                if view.bits and has_rows(t):
                    view.rows = rows_of(~torch.isfinite(t))
        for view, o in zip(hit.outputs, outputs, strict=True):
            view.stats = statistics(o)
        o = next(o for v, o in zip(hit.outputs, outputs, strict=True) if v.bits)
        if has_rows(o):
            hit.shape = tuple(o.shape)
            hit.rows = rows_of(torch.isnan(o) if new == NAN else ~torch.isfinite(o))

    def _trace_back(self, hit: Hit, task: int) -> None:
        """Gives an operator of the backward pass the place of its forward operator, unless Python code of the user runs it."""
        if hit.where.file is not None and self._recomputing():
            hit.backward = False  # the forward pass of a checkpointed block, run again
            return
        name, there = self._forward_of(task)
        if hit.where.file is not None:
            hit.own_code = True
            hit.where = Where(hit.where.code, hit.where.line, hit.where.lasti, there.module or hit.where.module)
        elif name is not None:
            hit.forward_name, hit.where = name, there

    def _forward_of(self, task: int) -> tuple[str | None, Where]:
        """The forward operator that made the node which autograd runs now, and its place."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None, NOWHERE
        thread = self._main if task == self._task else threading.get_ident()
        forward = self._by_seq.get((thread, node._sequence_nr()))
        if forward is None:
            return None, NOWHERE
        return self._of_backward.get(forward) or (self._names[forward], Where(*self._places[forward]))

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
        return self._count

    def disown(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts these tensors as coming from outside, whatever was seen writing them so far."""
        for key in map(storage_key, tensors):
            self.hits.pop(self._writer.pop(key, -1), None)
            self.disowned.add(key)

    def source(self, t: torch.Tensor) -> int:
        """The operator that wrote `t` last; a negative number where it came from outside the step."""
        key = storage_key(t)
        return self._writer.get(key, -key)

    def first_at(self, index: int) -> str:
        """The first of the operators that the same expression ran in a row up to this one (views have no place)."""
        here = first = index
        while here and self._places[here - 1] in (self._places[index], _NO_PLACE):
            here -= 1
            first = here if self._places[here] == self._places[index] else first
        return self._names[first]

    def births(self, sources: Iterable[int]) -> list[Birth]:
        """Where the non-finite values of what these operators wrote began, in the order of the step.

        What does not lie on the way back from them is harmless and is not among the answers.
        """
        return births(self, sources)
