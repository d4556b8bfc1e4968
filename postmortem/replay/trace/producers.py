"""Which node of autograd's graph gives a parameter's gradient strides that the parameter does not have.

Before a backward pass the graph is walked from the loss to the parameters, and hooks note the strides of what every
node hands on. The node beside the parameter is often not the one that made them: an elementwise operation hands on the
layout that it got. The line comes from the forward traceback, which autograd keeps in anomaly mode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.trace.strides import Strides, assigned_at, expected, returned_at
from postmortem.replay.trace.tensors import storage_key
from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

Place = tuple[str, int]
"""File and line."""
_Layout = tuple[Strides, Strides] | None
"""Shape and strides of a gradient; None where there is none, or it has no strides."""

_MAKERS = re.compile(
    r"(Mm|Bmm|Addmm|Baddbmm|Addbmm|Addmv|Mv|\w*Convolution\w*|Permute|Transpose|T|AsStrided|\w*Attention\w*|Linalg\w*"
    r"|Fft\w*)Backward\d*"
)
"""Operations that decide on the layout of the gradients that they hand on."""
_RESHAPES = re.compile(r"(View|UnsafeView|ReshapeAlias|Unsqueeze|Squeeze|Alias)Backward\d*")
_FRAME = re.compile(r'\s*File "(.+?)", line (\d+)')
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_DEEP = 200


@dataclass(frozen=True, slots=True)
class Raw:
    """A gradient as it arrives at its parameter. `op` made its strides, at `place`; both are unknown if they are right.

    beside: where the parameter itself is used, if that is another line. called: of a custom Function or a hook,
    the line that calls or registers it.
    """

    parameter: torch.Tensor
    shape: Strides
    strides: Strides
    expected: Strides
    dtype: str
    device: str
    op: str = ""
    place: Place | None = None
    beside: Place | None = None
    called: Place | None = None

    @property
    def odd(self) -> bool:
        """The strides are not those that are expected."""
        return self.strides != self.expected


class GradientWatch:
    """Watches one backward pass: `arm` before it, `disarm` after it, then `arrived`.

    reentrant: the graph has a checkpointed block whose own graph is made and run during the backward pass.
    """

    def __init__(self, roots: Iterable[torch.Tensor], want: Callable[[torch.Tensor], Strides] = expected) -> None:
        self._want = want
        self._into: dict[Any, list[tuple[Any, int, int]]] = {}  # node -> (who hands to it, at which output, its input)
        self._nodes: dict[int, Any] = {}
        self._handed: dict[int, tuple[list[_Layout], list[_Layout]]] = {}
        self._arrived: dict[int, tuple[_Layout, str, str]] = {}
        self._handles: list[Any] = []
        self.reentrant = False
        self._walk([t.grad_fn for t in roots if t.grad_fn is not None])

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Those that the graph reaches."""
        return [node.variable for node in self._accumulators()]

    def _accumulators(self) -> list[Any]:
        return [node for node in self._nodes.values() if node.name() == _ACCUMULATES]

    def _walk(self, todo: list[Any]) -> None:
        while todo:
            node = todo.pop()
            if id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            self.reentrant |= node.name() == "CheckpointFunctionBackward"
            for index, (further, slot) in enumerate(node.next_functions):
                if further is not None:
                    self._into.setdefault(further, []).append((node, index, slot))
                    todo.append(further)

    # ---- watching

    def arm(self) -> None:
        """Registers the hooks; they keep no gradient, as autograd copies one that somebody else holds."""
        for key, node in self._nodes.items():
            if node.name() == _ACCUMULATES:
                self._handles.append(node.register_prehook(partial(self._arrives, key)))
            else:
                self._handles.append(node.register_hook(partial(self._hands_on, key)))

    def disarm(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _arrives(self, key: int, grads: Sequence[torch.Tensor | None]) -> None:
        grad = grads[0]
        if grad is not None:
            self._arrived[key] = _layout(grad), str(grad.dtype).removeprefix("torch."), str(grad.device)

    def _hands_on(self, key: int, given: Sequence[Any], got: Sequence[Any]) -> None:
        self._handed[key] = [_layout(g) for g in given], [_layout(g) for g in got]

    # ---- asking

    def arrived(self) -> list[Raw]:
        """All gradients that reached a parameter."""
        found = []
        for node in self._accumulators():
            layout, dtype, device = self._arrived.get(id(node), (None, "", ""))
            if layout is None:
                continue
            parameter = node.variable
            raw = Raw(parameter, *layout, self._want(parameter), dtype, device)
            found.append(self._explained(raw, node) if raw.odd else raw)
        return found

    def _explained(self, raw: Raw, node: Any) -> Raw:
        """With what made the strides."""
        same = [each for each in self._into[node] if self._given(each) == (raw.shape, raw.strides)]
        odd = [each for each in self._into[node] if (given := self._given(each)) and given[1] != raw.expected]
        hooked = None if same else _hook(raw.parameter)
        if hooked is not None:
            return _with(raw, "hook", hooked, None, None)
        if not same and not odd:
            return raw
        beside = (same or odd)[0]
        maker = self._maker(beside)
        maker_at, beside_at = _place(maker[0]), _place(beside[0])
        op = maker[0].name()
        own = _backward_of(maker[0], maker[1])
        if own is not None:
            return _with(raw, op, own, maker_at, beside_at if beside_at != maker_at else None)
        return _with(raw, op, maker_at or beside_at, None, beside_at if beside_at != maker_at else None)

    def _given(self, edge: tuple[Any, int, int]) -> _Layout:
        given = self._handed.get(id(edge[0]), ([], []))[0]
        return given[edge[1]] if edge[1] < len(given) else None

    def _maker(self, edge: tuple[Any, int, int]) -> tuple[Any, int, int]:
        """The node that made the layout which `edge` hands on: as long as one only hands on what it got, the one that
        handed it that."""
        for _ in range(_DEEP):
            before = self._before(edge)
            if before is None:
                break
            edge = before
        return edge

    def _before(self, edge: tuple[Any, int, int]) -> tuple[Any, int, int] | None:
        node = edge[0]
        given, got = self._given(edge), self._handed.get(id(node), ([], []))[1]
        name = node.name()
        if given is None or _MAKERS.fullmatch(name):
            return None
        if _RESHAPES.fullmatch(name):
            slots = [i for i, layout in enumerate(got) if layout is not None and not _plain(layout)]
        else:
            slots = [i for i, layout in enumerate(got) if layout == given]
        for slot in slots:
            for further in self._into.get(node, ()):
                if further[2] == slot and self._given(further) == got[slot]:
                    return further
        return None


def _layout(tensor: Any) -> _Layout:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_nested:
        return None
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tuple(tensor.shape), tuple(tensor.stride())


def _plain(layout: tuple[Strides, Strides]) -> bool:
    return torch.empty_strided(*layout, device="meta").is_contiguous()


def _with(raw: Raw, op: str, place: Place | None, called: Place | None, beside: Place | None) -> Raw:
    return replace(raw, op=op, place=place, called=called, beside=beside)


def _place(node: Any) -> Place | None:
    """The innermost line of the user's in a node's forward traceback, else of a package's."""
    package = None
    for entry in reversed(node.metadata.get("traceback_", ())):
        told = _FRAME.match(entry)
        if told is None:
            continue
        owner = owner_of(told[1])
        if owner == "user":
            return told[1], int(told[2])
        if owner == "package" and package is None:
            package = told[1], int(told[2])
    return package


def _backward_of(node: Any, index: int) -> Place | None:
    """Where the backward of a custom Function of the user's makes the gradient that it returns at `index`."""
    made = getattr(type(node), "_forward_cls", None)
    place = returned_at(made.backward, index) if made is not None else None
    return place if place is not None and owner_of(place[0]) in ("user", "package") else None


def _hook(parameter: torch.Tensor) -> Place | None:
    """Where the last of the user's hooks on a parameter makes the gradient that it returns."""
    for hook in reversed(list((parameter._backward_hooks or {}).values())):
        place = returned_at(hook)
        if place is not None and owner_of(place[0]) in ("user", "package"):
            return place
    return None


def post_hook(parameter: torch.Tensor) -> Place | None:
    """Where a hook that runs after a gradient was accumulated replaces it."""
    for hook in reversed(list((parameter._post_accumulate_grad_hooks or {}).values())):
        place = assigned_at(hook, "grad")
        if place is not None and owner_of(place[0]) in ("user", "package"):
            return place
    return None


def name_of(node: str) -> str:
    """The operation of a node: `permute` of PermuteBackward0."""
    name = re.sub(r"Backward\d*$", "", node)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Producers:
    """A context in which every backward pass is watched.

    met: storage key of a parameter -> (operation, file, line) of the last gradient with other strides that reached it,
    and of a hook that gave it such a gradient. Plain data, so that a rerun in another process can hand it back.
    """

    def __init__(self) -> None:
        self.met: dict[int, tuple[str, str, int]] = {}

    def __enter__(self) -> Self:
        self._anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        self._backward = torch.autograd.backward
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.autograd.backward = self._watched
        return self

    def __exit__(self, *error: object) -> None:
        torch.autograd.backward = self._backward
        torch.autograd.set_detect_anomaly(*self._anomaly)

    def _watched(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        watch = GradientWatch([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        watch.arm()
        try:
            self._backward(tensors, *args, **kwargs)
        finally:
            watch.disarm()
        for raw in watch.arrived():
            if raw.place is not None:
                self.met[storage_key(raw.parameter)] = (name_of(raw.op), *raw.place)
