"""Patches of torch that detect the parts of a training step in any program. Installed once, after torch's import.

The end of an optimizer's or a scaler's step, the start of a backward pass, what a DataLoader gives, a loss that the
program reads, the end of the program: each becomes an event to the current `Observer`. No module hooks and no dispatch
mode are used, so that a compiled program stays compiled.
"""

from __future__ import annotations

from postmortem.attach.boundaries.current import current, exchange, listener
from postmortem.attach.boundaries.parameters import parameters
from postmortem.attach.boundaries.patches import install
from postmortem.attach.boundaries.roots import roots, watch_roots

__all__ = ["current", "exchange", "install", "listener", "parameters", "roots", "watch_roots"]
