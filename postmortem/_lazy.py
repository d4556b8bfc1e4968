"""Names of a package that are imported on first use (PEP 562), so that importing the package costs next to nothing."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy(package: str, where: Mapping[str, str | None]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the module `package`.

    `where` maps a name to the module that defines it, to ``module:name`` where it is called otherwise there, or to
    None where it is a module of `package`.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place = where[name]
        if place is None:
            return import_module(f"{package}.{name}")
        module, _, other = place.partition(":")
        return getattr(import_module(module), other or name)

    def names() -> list[str]:
        """The public names, and the modules of the package that have been imported."""
        module = sys.modules[package]
        modules = {n for n, value in vars(module).items() if value is sys.modules.get(f"{package}.{n}")}
        return sorted({*module.__all__, *where, *(n for n in modules if not n.startswith("_"))})

    return get, names


def need_torch(what: str) -> None:
    """Raises MissingExtra where torch is not installed, and PostmortemError where it could not be imported."""
    from postmortem.core.errors import MissingExtra, PostmortemError

    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(what, "replay")
    try:
        os.getcwd()
    except OSError:  # torch would end the process
        gone = "the working directory is gone, and torch needs one: cd to a folder that exists"
        raise PostmortemError(f"{what}: {gone}") from None
