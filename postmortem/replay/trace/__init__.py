"""See every operator of one run of a step: the tracer and what it writes down. Attachable to any training code.

`Tracer` is a context manager around the step; the module `origins` finds the operators that made non-finite values
first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem._lazy import lazy

if TYPE_CHECKING:
    from postmortem.replay.trace import origins
    from postmortem.replay.trace.tracer import Tracer

__all__ = ["Tracer", "origins"]

__getattr__, __dir__ = lazy(__name__, {"Tracer": "postmortem.replay.trace.tracer", "origins": None})
