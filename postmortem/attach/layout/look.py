"""Examines a copy of the program: the gradients of each parameter in each backward pass, and DDP's warnings."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.modules import module as module_hooks
from torch.nn.parallel import DistributedDataParallel

from postmortem.attach.boundaries.roots import roots, watch_roots
from postmortem.attach.layout.changes import Change, unwrapped
from postmortem.attach.layout.replicas import Replicas
from postmortem.attach.layout.told import MOVED
from postmortem.core.errors import described
from postmortem.replay.trace.producers import GradientWatch, Raw, name_of, post_hook
from postmortem.replay.trace.strides import contiguous_strides, dense, difference, expected, format_of
from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARNING = "Grad strides do not match bucket view strides"
_TOGETHER = 5.0
"""Seconds in which the other ranks may come to their end."""


class Look:
    """What this process notes. order: of `runs`. note: takes what hinders us, in one line."""

    def __init__(self, order: dict[str, Any], note: Callable[[str], None]) -> None:
        self._folder = Path(order["folder"])
        self._iterations, self._seconds = order["iterations"], order["seconds"]
        self._note = note
        self._change = Change(order["change"])
        self._replicas: Replicas | None = None
        if order["processes"] > 1:
            as_view = self._change.fix != "no-bucket-view"
            self._replicas = Replicas(self._folder, order["rank"], order["processes"], as_view, note)
        self._began = time.monotonic()
        self._nested = 0
        self._phases: dict[tuple[str, int], int] = {}
        self._phase: tuple[str, int] = ("", 0)
        self._iteration = 0
        self._buckets: dict[int, tuple[int, ...]] = {}  # id of a parameter -> its strides when DDP was made
        self._moved: dict[int, tuple[str, int] | None] = {}
        self._seen: set[Any] = set()
        self._roots = watch_roots()
        self._file: int | None = None
        self._over = False

    # ---- places in torch

    def install(self) -> None:
        """Patches torch; nothing is undone, as the copy ends with the look."""
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        self._roots.__enter__()
        module_hooks.register_module_forward_pre_hook(self._called)
        self._backward = torch.autograd.backward

        @functools.wraps(self._backward)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._watched(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        self._patch_ddp()
        self._patch_moves()
        self._change.begin()
        atexit.register(self._ended)
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """In a process that the program forked, as a worker of a DataLoader: nothing is looked at."""
        self._over = True

    def _patch_ddp(self) -> None:
        kind: Any = DistributedDataParallel
        make = kind.__init__

        @functools.wraps(make)
        def made(ddp: Any, module: torch.nn.Module, *args: Any, **options: Any) -> None:
            self._change.buckets(options)
            self._change.on_model(None, module)
            make(ddp, module, *args, **options)
            for parameter in module.parameters():
                self._buckets[id(parameter)] = expected(parameter)
            sizes = [p.numel() * p.element_size() for p in module.parameters() if p.requires_grad]
            self._tell("ddp", as_view=ddp.gradient_as_bucket_view, bytes=sum(sizes))

        kind.__init__ = made

    def _patch_moves(self) -> None:
        kind: Any = torch.nn.Module
        apply = kind._apply

        @functools.wraps(apply)
        def applied(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = {id(p): p.stride() for p in module.parameters(recurse=False) if id(p) in self._buckets}
            made = apply(module, *args, **kwargs)
            for p in module.parameters(recurse=False):
                if before.get(id(p), p.stride()) != p.stride():
                    self._moved[id(p)] = _user_line()
            return made

        kind._apply = applied

    # ---- models and their inputs

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if self._over:
            return
        for name, root in roots().items():
            if root is module:
                self._model(name, module)
                for index, given in enumerate(args if isinstance(args, tuple) else (args,)):
                    self._input(name, index, given)

    def _model(self, name: str, module: torch.nn.Module) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        if any(module is m for root in roots().values() if root is not module for m in root.modules()):
            return  # a part of another model, called alone: by a checkpointed block, for example
        self._change.on_model(name, module)
        inner = unwrapped(module)
        odd = [
            {"parameter": n, "shape": list(p.shape), "strides": list(p.stride()), "format": _format(p)}
            for n, p in inner.named_parameters()
            if p.layout == torch.strided and tuple(p.stride()) != contiguous_strides(p.shape)
        ]
        self._tell("init", model=name, kind_of=type(inner).__name__, parameters=len(list(inner.parameters())), odd=odd)

    def _input(self, model: str, index: int, given: Any) -> None:
        if not isinstance(given, torch.Tensor) or given.layout != torch.strided or given.is_nested:
            return
        known = (model, index, _format(given), given.dtype, given.device)
        if known not in self._seen:
            self._seen.add(known)
            self._tell("input", model=model, index=index, format=_format(given), **_facts(given))

    def _models(self) -> dict[str, torch.nn.Module]:
        """Those that no other one contains."""
        found = {name: unwrapped(root) for name, root in roots().items()}
        inside = {id(m) for root in found.values() for m in list(root.modules())[1:]}
        return {name: root for name, root in found.items() if id(root) not in inside}

    def _names(self) -> dict[int, tuple[str, str]]:
        """id of a parameter -> (model, name in it); the largest model that has it, as a loss may hold one as well."""
        found: dict[int, tuple[str, str]] = {}
        models = self._models()
        for model in sorted(models, key=lambda m: -len(list(models[m].parameters()))):
            for name, parameter in models[model].named_parameters(remove_duplicate=False):
                found.setdefault(id(parameter), (model, name))
        return found

    # ---- backward passes

    def _watched(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        some = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if self._over:
            self._backward(tensors, *args, **kwargs)
            return
        if self._nested == 0:
            self._begin_pass()
        watch = GradientWatch(some, self._wanted)
        if self._nested == 0 and self._replicas is not None:
            self._replicas.prepare(watch, some, self._models().values())
        watch.arm()
        self._nested += 1
        try:
            warned = self._run(self._nested == 1, lambda: self._backward(tensors, *args, **kwargs))
        finally:
            self._nested -= 1
            watch.disarm()
        self._note_pass(watch, warned)

    def _begin_pass(self) -> None:
        self._phase = _user_line() or ("", 0)
        self._enough(self._phases.get(self._phase, 0))
        self._iteration = self._phases.get(self._phase, 0)
        self._phases[self._phase] = self._iteration + 1

    @staticmethod
    def _run(outermost: bool, backward: Callable[[], None]) -> int:
        """Runs a backward pass. -> how often DDP warned of strides; other warnings are given again."""
        if not outermost:
            backward()
            return 0
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)  # DDP would warn once per process only
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                backward()
        finally:
            torch.set_warn_always(always)
        for other in caught:
            if WARNING not in str(other.message):
                warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        return sum(WARNING in str(w.message) for w in caught)

    def _wanted(self, parameter: torch.Tensor) -> tuple[int, ...]:
        return self._buckets.get(id(parameter)) or expected(parameter)

    def _note_pass(self, watch: GradientWatch, warned: int) -> None:
        names = self._names()
        arrived = watch.arrived()
        for raw in arrived:
            self._gradient(raw, names.get(id(raw.parameter), ("", f"a parameter of shape {list(raw.shape)}")))
        if self._nested == 0:
            world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
            self._tell(
                "backward",
                phase=self._phase,
                iteration=self._iteration,
                gradients=len(arrived),
                warnings=warned,
                world=world,
            )

    def _gradient(self, raw: Raw, name: tuple[str, str]) -> None:
        parameter = raw.parameter
        strides, op, place = raw.strides, raw.op, raw.place
        if raw.expected != expected(parameter) and id(parameter) in self._moved:
            op, place = MOVED, self._moved[id(parameter)]
        elif not raw.odd:
            kept = parameter.grad
            if kept is None or kept.layout != torch.strided or tuple(kept.shape) != raw.shape:
                return
            if tuple(kept.stride()) == raw.expected or not parameter._post_accumulate_grad_hooks:
                return
            strides, op, place = tuple(kept.stride()), "hook", post_hook(parameter)
        self._tell(
            "odd",
            model=name[0],
            parameter=name[1],
            phase=self._phase,
            iteration=self._iteration,
            shape=raw.shape,
            strides=strides,
            expected=raw.expected,
            format=format_of(raw.shape, strides),
            dense=dense(raw.shape, strides),
            difference=difference(raw.shape, raw.expected, strides),
            dtype=raw.dtype,
            device=raw.device,
            bytes=parameter.numel() * parameter.element_size(),
            op=op if op == MOVED else name_of(op),
            place=place,
            beside=raw.beside,
            called=raw.called,
        )

    # ---- the end

    def _enough(self, done: int) -> None:
        """Ends the process before a backward pass, of which there were `done` at its line, if enough was seen of every
        line (a line that runs but once in a while is not waited for), or the time is up."""
        if self._over or self._nested:
            return
        late = time.monotonic() - self._began > self._seconds and bool(self._phases)
        every = min(self._phases.values(), default=0) >= self._iterations
        if late or (done >= self._iterations and (every or done >= 2 * self._iterations)):
            self._ended()
            world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
            until = time.monotonic() + _TOGETHER  # who leaves early breaks the connection of the others
            while len(list(self._folder.glob("*.over"))) < world and time.monotonic() < until:
                time.sleep(0.01)
            sys.stdout.flush()
            os._exit(0)

    def _ended(self) -> None:
        if self._over:
            return
        self._over = True
        if self._file is not None and self._phases:
            try:
                changed = self._change.met()
            except Exception as error:  # noqa: BLE001 - only the changed source is not shown then
                changed = []
                self._note(f"a change cannot be shown: {described(error)}")
            for line in changed:
                self._tell("changed", **line)
            (self._folder / f"{os.getpid()}.over").touch()

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._folder / f"{os.getpid()}.jsonl", flags, 0o600)
        os.write(self._file, (json.dumps({"kind": kind, **fields}) + "\n").encode())


def _user_line() -> tuple[str, int] | None:
    """The innermost line of the user's that runs, else of a package's."""
    package = None
    for file, line in _frames():
        owner = owner_of(file)
        if owner == "user":
            return file, line
        if owner in ("package", "driver"):
            package = package or (file, line)
    return package


def _frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
    }


def _format(tensor: torch.Tensor) -> str:
    return format_of(tensor.shape, tensor.stride())
