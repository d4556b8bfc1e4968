"""One registry for every kind of plugin: a decorator, discovery of the package's modules, entry points."""

from __future__ import annotations

import importlib
import pkgutil
import threading
import warnings
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from postmortem.core import installed
from postmortem.core.collection import uncollected
from postmortem.core.errors import PostmortemError, UsageError, described, did_you_mean
from postmortem.core.model import Problem
from postmortem.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoint
    from pathlib import Path

T = TypeVar("T")
C = TypeVar("C")
_FAULTS: ContextVar[list[Problem] | None] = ContextVar("faults", default=None)


@contextmanager
def collected_faults(into: list[Problem] | None = None) -> Iterator[list[Problem]]:
    """Faults of plugins that are met inside this context are added to `into`, a new list by default.

    Inside another such context they are added to its list as well.
    """
    faults: list[Problem] = [] if into is None else into
    before = len(faults)
    token = _FAULTS.set(faults)
    try:
        yield faults
    finally:
        _FAULTS.reset(token)
        if _FAULTS.get() is not None:
            for fault in faults[before:]:
                report_fault(fault)


def report_fault(fault: Problem) -> None:
    """Adds `fault` to the faults that are being collected, each `what` once; elsewhere it is a RuntimeWarning."""
    faults = _FAULTS.get()
    if faults is None:
        warnings.warn(f"{fault.path}: {fault.what}; lost: {fault.lost}", RuntimeWarning, stacklevel=3)
    elif all(known.what != fault.what for known in faults):
        faults.append(fault)


@dataclass(frozen=True)
class Broken:
    """A plugin that did not load, and why."""

    where: str
    why: str


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group."""
    return [entry for entry in installed.entry_points() if entry.group == group]


def _origin(item: object) -> tuple[str, str]:
    """Where a class or function is defined: the same place twice is a module that was loaded again."""
    return getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))


class Registry(Generic[T]):
    """Everything of one kind, each item with a `key` of its own, sorted by `order` and key.

    The modules of `package` without a leading underscore are imported on first use, then the entry points
    of `group`. A module that fails to import is remembered in `broken` and stops nothing.

    >>> from postmortem.detectors import DETECTORS
    >>> DETECTORS["NAN001"].name
    'nan-onset'
    >>> DETECTORS["NAN01"]
    Traceback (most recent call last):
    ...
    postmortem.core.errors.UsageError: unknown plugin 'NAN01'; did you mean 'NAN001'?; available: AMP001, ...
    """

    def __init__(
        self,
        package: str,
        key: Callable[[T], str],
        *,
        order: Callable[[T], int] = lambda _: 0,
        noun: str = "plugin",
        group: str = "",
    ) -> None:
        self.package = package
        self.group = group or package
        self.noun = noun
        self.key, self.order = key, order
        self._items: dict[str, T] = {}
        self._in_order: tuple[dict[str, T], tuple[T, ...]] = ({}, ())
        self._broken: list[Broken] = []
        self._loading = self._loaded = False
        self._lock = threading.RLock()

    def register(self, plugin: C) -> C:
        """Adds `plugin`; used as the decorator.

        ValueError if the key is taken by something else, TypeError if it is no text.
        """
        item = cast("T", plugin)
        key = self.key(item)
        if not isinstance(key, str):
            raise TypeError(f"{self.package}: {key!r} is not a str")
        other = self._items.get(key)
        if other is not None and _origin(other) != _origin(item):
            raise ValueError(f"{self.package}: {key!r} is registered twice")
        self._items[key] = item
        return plugin

    def load(self) -> None:
        """Imports everything once. Other threads wait: half of the detectors would find half of the faults."""
        if self._loaded:
            return
        with self._lock:
            if self._loaded or self._loading:  # by another thread; or a module asks while it is imported itself
                return
            self._loading = True
            with uncollected():
                package = importlib.import_module(self.package)
                modules = (m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))
                for name in sorted(f"{self.package}.{module}" for module in modules):
                    self._guard(name, partial(importlib.import_module, name))
                for entry in entry_points(self.group):
                    self._guard(f"{entry.name} = {entry.value}", entry.load)
            self._loading, self._loaded = False, True

    def _load_alone(self, key: str) -> None:
        """Imports the module that is named like the key, if there is one and no other package adds anything."""
        if not entry_points(self.group) and key.isidentifier() and not key.startswith("_"):
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"{self.package}.{key}")

    def _guard(self, where: str, load: Callable[[], object]) -> None:
        try:
            load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything while it is imported
            self._broken.append(Broken(where, printable(" ".join(f"{type(error).__name__}: {error}".split()))))

    def __iter__(self) -> Iterator[T]:
        self.load()
        known, in_order = self._in_order
        if known != self._items:
            by_key = sorted(self._items.items(), key=lambda item: (self.order(item[1]), item[0]))
            in_order = tuple(item for _, item in by_key)
            self._in_order = ({**self._items}, in_order)
        return iter(in_order)

    def fault(self, plugin: object, method: str, error: BaseException) -> str:
        """One line that says which plugin failed, in which method and how."""
        name = getattr(plugin, "name", None) or getattr(plugin, "kind", None) or getattr(plugin, "__name__", plugin)
        return f"the {self.noun} {name} failed in {method}: {described(error)}"

    def call(
        self,
        plugin: object,
        method: str,
        *args: Any,
        default: Any,
        path: Path | str,
        lost: str,
        raises: type[Exception] = PostmortemError,
    ) -> Any:
        """The result of a method of `plugin`; `default` where it raises, which is reported as a fault of the plugin.

        `path` is what the plugin was called for, `lost` what its fault costs. PostmortemErrors and what the method
        may raise (`raises`) are passed on.
        """
        try:
            return getattr(plugin, method)(*args)
        except (PostmortemError, raises):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
            report_fault(Problem(path=str(path), what=self.fault(plugin, method, error), lost=lost))
            return default

    def __getitem__(self, key: str) -> T:
        if key not in self._items and not self._loaded:
            self._load_alone(key)
        if key not in self._items:
            self.load()
        if key not in self._items:
            hint = f"{did_you_mean(key, self._items)}; available: {', '.join(sorted(self._items))}"
            raise UsageError(f"unknown {self.noun} {key!r}{hint}")
        return self._items[key]

    @property
    def loaded(self) -> bool:
        """Whether the plugins have been imported."""
        return self._loaded

    @property
    def broken(self) -> list[Broken]:
        """The modules and entry points that failed to import."""
        self.load()
        return self._broken
