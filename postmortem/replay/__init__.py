"""Replay: rerun the step at fault and name the culprit. Needs torch.

The package can be called: ``postmortem.replay("runs/exp7")`` is `postmortem.api.replay`, which finds the run, its
checkpoint and its recipe. `replay` here takes what was found; `localize` takes one step of your own program.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from postmortem._lazy import lazy

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fidelity, Fix
    from postmortem.replay.culprit.localize import localize
    from postmortem.replay.driver import replay
    from postmortem.replay.fixes import FIXES
    from postmortem.replay.model import Context, TrainStep

__all__ = ["FIXES", "Context", "Culprit", "Fidelity", "Fix", "TrainStep", "localize", "replay"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(("Culprit", "Fidelity", "Fix"), "postmortem.core.culprit"),
        **dict.fromkeys(("Context", "TrainStep"), "postmortem.replay.model"),
        "FIXES": "postmortem.replay.fixes",
        "localize": "postmortem.replay.culprit.localize",
        "replay": "postmortem.replay.driver",
    },
)


def device_summary() -> str:
    """One line that names the devices on which a replay could run, or says that torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return "none: replay needs torch"
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"CPU and {len(names)} × CUDA ({', '.join(dict.fromkeys(names))})"
    return "CPU (CUDA is not available)"
