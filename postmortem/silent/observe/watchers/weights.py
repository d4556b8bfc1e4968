"""Weights that are loaded, kept, copied or tied."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from postmortem.silent.observe.places import place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Copied, Loaded, Saved, Untied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from postmortem.silent.facts import Stack
    from postmortem.silent.observe.recorder import Recorder

_COPIES = 2000


class _Taken(NamedTuple):
    """state_dict() of a module was called."""

    state: weakref.ref[Any]
    module: weakref.ref[Any]
    step: int
    stack: Stack
    versions: dict[str, int]
    """Of its tensors: what is written into them in place changes their version."""


class _Tie(NamedTuple):
    """Two modules have one parameter. other: the class of the second one."""

    first: weakref.ref[Any]
    first_name: str
    second: weakref.ref[Any]
    second_name: str
    other: str
    stack: Stack


@watcher
class Weights(Watcher):
    """Loaded, Saved, Copied, Untied."""

    order = 2

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._taken: list[_Taken] = []
        self._last: dict[int, _Taken] = {}
        self._homes: dict[int, list[tuple[weakref.ref[Any], str]]] = {}
        self._ties: list[_Tie] = []
        self._again: dict[tuple[int, str], Stack] = {}
        self._copies = 0
        module: Any = torch.nn.Module
        self.wrap(module, "state_dict", self._state, always=True)
        self.wrap(module, "load_state_dict", self._load, always=True)
        self.wrap(module, "register_parameter", self._registered, always=True)
        self.wrap(torch, "save", self._save, always=True)
        self.wrap(torch.nn.Parameter, "__deepcopy__", self._copied, always=True)

    # ---- states

    def _state(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Of a whole model: those of its parts are asked with a destination."""
        if len(args) != 1 or kwargs.get("destination") is not None or not isinstance(result, OrderedDict):
            return
        versions = {k: _version(v) for k, v in _tensors(result)}
        taken = _Taken(weakref.ref(result), weakref.ref(args[0]), self.recorder.steps, stack(), versions)
        self._taken = [t for t in self._taken if t.state() is not None]
        self._taken.append(taken)
        self._last[id(args[0])] = taken

    def _load(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        module, state = args[0], kwargs.get("state_dict", args[1] if len(args) > 1 else None)
        if not hasattr(state, "items") or state is None:
            return
        own = dict(_tensors({**dict(module.named_parameters()), **dict(module.named_buffers())}))
        given = dict(_tensors(state))
        matched = own.keys() & given.keys()
        alias = [k for k in matched if _memory(own[k]) == _memory(given[k])] if not kwargs.get("assign") else []
        taken = self._kept(state) or self._kept_tensors(module, matched, alias)
        alias = self._unwritten(module, given, alias)
        self.recorder.add(
            Loaded(
                type(module).__name__,
                self.recorder.steps,
                bool(kwargs.get("strict", args[2] if len(args) > 2 else True)),
                given=_elements(given.values()),
                own=_elements(own.values()),
                matched=_elements(own[k] for k in matched),
                alias=_elements(own[k] for k in alias),
                names=(next(iter(given.keys() - own.keys()), ""), next(iter(own.keys() - given.keys()), "")),
                taken=taken.step if taken else None,
                stack=taken.stack if taken else (),
                at=place(),
            )
        )
        source = next((t.module() for t in self._taken if t.state() is state), None)
        if source is not None and source is not module:
            origins = dict(source.named_parameters())
            for name, parameter in module.named_parameters():
                if name in origins:
                    self._told_of_copy(parameter, origins[name])

    def _kept(self, state: Any) -> _Taken | None:
        """Where this dict was taken, if that was at an earlier step and it still holds live tensors."""
        taken = next((t for t in self._taken if t.state() is state), None)
        if taken is None or taken.step >= self.recorder.steps:
            return None
        module = taken.module()
        own = dict(module.named_parameters()) if module is not None else {}
        shared = [k for k in own if isinstance(state.get(k), torch.Tensor)]
        return taken if shared and all(_memory(own[k]) == _memory(state[k]) for k in shared) else None

    def _kept_tensors(self, module: Any, matched: set[str], alias: list[str]) -> _Taken | None:
        """The same for another dict with the module's own tensors."""
        last = self._last.get(id(module))
        if last is None or last.module() is not module or not matched or len(alias) < len(matched):
            return None
        return last if last.step < self.recorder.steps else None

    def _unwritten(self, module: Any, given: dict[str, torch.Tensor], alias: list[str]) -> list[str]:
        """Of these, those into which nothing was copied since the state was taken."""
        last = self._last.get(id(module))
        if last is None or last.module() is not module or last.step < self.recorder.steps:
            return alias
        copies = Counter(_memory(given[k]) for k in alias)  # by load_state_dict itself
        return [k for k in alias if _version(given[k]) <= last.versions.get(k, 0) + copies[_memory(given[k])]]

    def _save(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        saved = args[0] if args else kwargs.get("obj")
        for each in (saved, *(saved.values() if isinstance(saved, dict) else ())):
            taken = self._kept(each) if isinstance(each, OrderedDict) else None
            if taken is not None:
                self.recorder.add(Saved(self.recorder.steps, taken.step, taken.stack, place()))

    # ---- copies

    def _copied(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if isinstance(result, torch.nn.Parameter) and result is not args[0]:
            self._told_of_copy(result, args[0])

    def _told_of_copy(self, parameter: torch.Tensor, origin: torch.Tensor) -> None:
        self._copies += 1
        if self._copies <= _COPIES:
            numbers = self.recorder.parameters
            self.recorder.add(Copied(numbers.number(parameter), numbers.number(origin), stack()))

    # ---- ties

    def _registered(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if len(args) < 3 or not isinstance(args[2], torch.nn.Parameter):
            return
        module, name, parameter = args[0], args[1], args[2]
        number = self.recorder.parameters.met(parameter)
        homes = [(found, n) for found, n in self._homes.get(number, ()) if _holds(found(), n, parameter)]
        for found, other in homes:
            if found() is not module:
                self._ties.append(_Tie(found, other, weakref.ref(module), name, type(module).__name__, stack()))
        self._homes[number] = [(f, n) for f, n in homes if (f(), n) != (module, name)] + [(weakref.ref(module), name)]
        if any((tie.first() is module, tie.first_name) == (True, name) for tie in self._ties) or any(
            (tie.second() is module, tie.second_name) == (True, name) for tie in self._ties
        ):
            self._again[id(module), name] = stack()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.recorder.sampled and self._ties:
            self._ties = [tie for tie in self._ties if not self._untied(tie)]

    def _untied(self, tie: _Tie) -> bool:
        first, second = tie.first(), tie.second()
        mine = getattr(first, tie.first_name, None)
        if not isinstance(mine, torch.nn.Parameter):
            return True
        other = getattr(second, tie.second_name, None)
        if other is mine:
            return False
        number = self.recorder.parameters.number
        made = self._again.get((id(second), tie.second_name), ()) or self._again.get((id(first), tie.first_name), ())
        theirs = number(other) if isinstance(other, torch.nn.Parameter) else None
        self.recorder.add(Untied(self.recorder.steps, number(mine), theirs, tie.other, tie.stack, made))
        return True


def _tensors(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((k, v) for k, v in state.items() if isinstance(v, torch.Tensor))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _elements(tensors: Any) -> int:
    return sum(t.numel() for t in tensors)


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return (tensor.data_ptr(), int(tensor.storage_offset())) if plain and tensor.numel() else (id(tensor), -1)


def _holds(module: Any, name: str, parameter: torch.nn.Parameter) -> bool:
    return module is not None and module._parameters.get(name) is parameter
