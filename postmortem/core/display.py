"""How core types show themselves: renderings that a layer above installs."""

from __future__ import annotations

from typing import Any

HOOKS: dict[str, Any] = {}
"""Renderings of core types; `postmortem.api` installs them, so that core knows no layer above it."""


def _hook(name: str) -> Any:
    if name not in HOOKS:
        import importlib

        importlib.import_module("postmortem.api")
    return HOOKS[name]
