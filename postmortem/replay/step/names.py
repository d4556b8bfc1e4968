"""Names of parameters, modules and losses."""

from __future__ import annotations

from typing import Any


def plain_name(*parts: str) -> str:
    """The qualified name of these parts without the components that torch.compile adds."""
    return ".".join(p for part in parts for p in part.split(".") if p and p != "_orig_mod")


def by_name(value: Any, single: str) -> dict[str, Any]:
    """A copy of a dict; anything else as a dict with the key `single`."""
    return dict(value) if isinstance(value, dict) else {single: value}
