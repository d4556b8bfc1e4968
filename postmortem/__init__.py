"""postmortem tells people why a training run died.

The public names are loaded on first use: importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem._version import __version__

if TYPE_CHECKING:
    from postmortem.api import load, localize, scan
    from postmortem.core.culprit import Culprit
    from postmortem.core.errors import PostmortemError
    from postmortem.core.model import Diagnosis, Event, Finding, Problem
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run
    from postmortem.replay.model import TrainStep

_WHERE = {
    "Culprit": "postmortem.core.culprit",
    "Diagnosis": "postmortem.core.model",
    "Event": "postmortem.core.model",
    "Finding": "postmortem.core.model",
    "PostmortemError": "postmortem.core.errors",
    "Problem": "postmortem.core.model",
    "Report": "postmortem.core.report",
    "Run": "postmortem.core.run",
    "RunReport": "postmortem.core.report",
    "TrainStep": "postmortem.replay.model",
    "load": "postmortem.api",
    "localize": "postmortem.api",
    "scan": "postmortem.api",
}

__all__ = [
    "Culprit",
    "Diagnosis",
    "Event",
    "Finding",
    "PostmortemError",
    "Problem",
    "Report",
    "Run",
    "RunReport",
    "TrainStep",
    "__version__",
    "load",
    "localize",
    "scan",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'postmortem' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
