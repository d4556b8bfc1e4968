"""Checkpoints: finds, maps, checks and reads saved state; independent of training steps.

`find` recognises checkpoints by their names and needs no torch; `health` reads their tensors; `of_run` checks the
checkpoints of a run for a scan; `read` gives the content of one; `FORMATS` are the file formats. A call of the package,
``postmortem.checkpoints("runs/exp7")``, is `postmortem.api.checkpoints`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem._lazy import lazy

if TYPE_CHECKING:
    from postmortem.checkpoints import find, health, of_run
    from postmortem.checkpoints.content import read_saved as read
    from postmortem.checkpoints.formats import FORMATS

__all__ = ["FORMATS", "find", "health", "of_run", "read"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "FORMATS": "postmortem.checkpoints.formats",
        "find": None,
        "health": None,
        "of_run": None,
        "read": "postmortem.checkpoints.content:read_saved",
    },
)
