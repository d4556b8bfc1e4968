"""Runs inside the user's program and records what it does as facts. `watchers` has one file per subject.

Nothing here may change what the program computes: no random number is drawn, no gradient is made, no value waits for a
device outside the steps that are looked at. A watcher that fails is left out, with a note.
"""

from __future__ import annotations

from postmortem.silent.observe.begin import begin

__all__ = ["begin"]
