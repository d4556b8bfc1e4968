"""From paths to runs: `discover` says which files are a run, `read_runs` puts their readings together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem._lazy import lazy

if TYPE_CHECKING:
    from postmortem.runs.assemble import read_runs
    from postmortem.runs.group import discover

__all__ = ["discover", "read_runs"]

__getattr__, __dir__ = lazy(__name__, {"discover": "postmortem.runs.group", "read_runs": "postmortem.runs.assemble"})
