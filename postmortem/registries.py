"""All registries of plugins, imported on first use."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postmortem.core.registry import Broken, Registry

_REGISTRIES = {
    "readers": "postmortem.readers:READERS",
    "dialects": "postmortem.readers.text.dialects:DIALECTS",
    "checkpoint formats": "postmortem.checkpoints.formats:FORMATS",
    "detectors": "postmortem.detectors:DETECTORS",
    "diagnoses": "postmortem.diagnoses:CAUSES",
    "reporters": "postmortem.reporters:REPORTERS",
    "fixes": "postmortem.replay.fixes:FIXES",
    "stages of a replay": "postmortem.replay.culprit.stages:STAGES",
    "silent faults": "postmortem.silent.faults:FAULTS",
    "watchers": "postmortem.silent.observe.watchers:WATCHERS",
}
_NEED_TORCH = ("fixes", "stages of a replay", "watchers")
OF_A_SCAN = tuple(kind for kind in _REGISTRIES if kind not in (*_NEED_TORCH, "silent faults"))
"""The kinds of plugins that a scan uses."""


def registries(*kinds: str) -> dict[str, Registry[Any]]:
    """The registries of these kinds of plugins, by default of all kinds; without torch, not those that need it."""
    has_torch = importlib.util.find_spec("torch") is not None and _has_working_directory()
    places = [(k, *_REGISTRIES[k].split(":")) for k in kinds or _REGISTRIES if has_torch or k not in _NEED_TORCH]
    return {kind: getattr(importlib.import_module(module), name) for kind, module, name in places}


def broken_plugins(*kinds: str, used: bool = False) -> list[Broken]:
    """Plugins of these kinds, by default of all, that could not be imported. Every command goes on without them.

    With `used`, only those of the kinds that something asked for until now: the others are not imported.
    """
    asked = (registry for registry in registries(*kinds).values() if registry.loaded or not used)
    return [broken for registry in asked for broken in registry.broken]


def _has_working_directory() -> bool:
    """False where it was deleted: importing torch would then end the process."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True
