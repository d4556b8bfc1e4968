"""Cases: what a test file declares for one registered class, so that no class goes without.

A class in ``postmortem/detectors/nan_onset.py`` has its cases in ``tests/detectors/test_nan_onset.py``: functions under
a decorator that names the class. The battery of the folder runs them; ``tests/test_registries.py`` fails for a class
that lacks a kind of case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parent.parent
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Case:
    """One case of a registered item: its kind ("fires"), the function that makes or tests it, what the decorator was
    given."""

    kind: str
    of: Any
    make: Callable[..., Any]
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{getattr(self.of, 'name', self.of)}-{self.make.__name__}"


def case(kind: str) -> Callable[..., Callable[[F], F]]:
    """The decorator for cases of one kind: with ``fires = case("fires")``, ``@fires(NanOnset, step=200)`` declares one.

    It leaves the function unchanged: a maker of input for a battery, or a test that pytest collects as well.
    """

    def declare(of: Any, **options: Any) -> Callable[[F], F]:
        def mark(function: F) -> F:
            declared = Case(kind, of, function, options)
            function.cases = (*getattr(function, "cases", ()), declared)  # type: ignore[attr-defined]
            return function

        return mark

    return declare


def file_of(item: Any) -> Path:
    """The test file of a registered item: the folders below ``tests/`` are those below ``postmortem/``."""
    *folders, module = item.__module__.split(".")[1:]
    if hasattr(sys.modules[item.__module__], "__path__"):  # a package has its tests in a folder of its own
        folders.append(module)
    return Path("tests", *folders, f"test_{module}.py")


def cases_in(file: Path) -> list[Case]:
    """All cases that a test file, relative to the repository's root, declares; none where there is no such file."""
    if not (ROOT / file).exists():
        return []
    module = import_module(".".join(file.with_suffix("").parts))
    return [case for value in vars(module).values() for case in getattr(value, "cases", ())]


def cases_of(item: Any) -> list[Case]:
    """The cases that the test file of an item declares for it."""
    return [case for case in cases_in(file_of(item)) if case.of is item]


def cases(registry: Iterable[Any], kind: str) -> list[Case]:
    """All cases of one kind, for the parameters of a test."""
    return [c for item in registry for c in cases_of(item) if c.kind == kind]
