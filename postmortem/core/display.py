"""How core types are displayed: a layer above installs renderings in `HOOKS`; without them, `repr` is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS: dict[str, Callable[..., Any]] = {}
"""Renderings by name, filled by `postmortem.display`: ``text(thing)``, ``html(thing)``, ``plot(thing, ax, **options)``,
``series(run)``."""


def as_text(thing: object) -> str:
    """What `print` shows."""
    return str(HOOKS["text"](thing)) if "text" in HOOKS else repr(thing)


def as_html(thing: object) -> str:
    """What a notebook shows."""
    if "html" in HOOKS:
        return str(HOOKS["html"](thing))
    from html import escape

    return f"<pre>{escape(repr(thing))}</pre>"


def plot(thing: object, ax: Any = None, **options: Any) -> Any:
    """Draws into the matplotlib Axes `ax`, or into new ones; returns them. Without a hook: the `repr`."""
    return HOOKS["plot"](thing, ax, **options) if "plot" in HOOKS else repr(thing)


class Displayed:
    """Base of the types that `print` and notebooks show in full. Each has a `repr` of one line."""

    __slots__ = ()

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)
