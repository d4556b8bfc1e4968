"""How core types are displayed: a layer above installs renderings in `HOOKS`; without them, `repr` is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS: dict[str, Callable[..., Any]] = {}
"""Renderings by name, filled by `postmortem.display`: ``text(thing)``, ``html(thing)``, ``plot(thing, ax)``."""


def as_text(thing: object) -> str:
    """What `print` shows of a report."""
    return str(HOOKS["text"](thing)) if "text" in HOOKS else repr(thing)


def as_html(thing: object) -> str:
    """What a notebook shows."""
    if "html" in HOOKS:
        return str(HOOKS["html"](thing))
    from html import escape

    return f"<pre>{escape(repr(thing))}</pre>"


def plot(thing: object, ax: Any = None) -> Any:
    """Draws into the matplotlib Axes `ax`, or into new ones; returns them. Without a hook: the `repr`."""
    return HOOKS["plot"](thing, ax) if "plot" in HOOKS else repr(thing)
