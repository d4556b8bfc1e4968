"""Starts the user's command in a sandbox: no file of the user changes, and no process outlives the launcher.

`start` runs it as a rerun: its writes go to a layer beside (`Launched.shadow`), no network, no job submitted, in a
session of its own. `watch` runs it for real, with the terminal, the signals and the exit code untouched.
"""

from __future__ import annotations

from postmortem.attach.launch.foreground import Watched, watch
from postmortem.attach.launch.rerun import OUTPUT, CannotProtect, Launched, start
from postmortem.attach.launch.session import new_session

__all__ = ["OUTPUT", "CannotProtect", "Launched", "Watched", "new_session", "start", "watch"]
