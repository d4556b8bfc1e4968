"""The logs that a watched program wrote: found by what changed below the working directory while it ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.histories import history_of
from postmortem.core.view import View
from postmortem.runs.assemble import read_runs
from postmortem.runs.group import discover

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES = 20_000  # looked at, at most: a working directory may hold a data set
_RUNS = 8
_SKIPPED = ("node_modules", "__pycache__", "site-packages")


def log_of(since: float) -> Iterator[View]:
    """The runs below the working directory with a file that changed since then, the newest first. What a watch wrote is
    no part of them: a history counts the optimizer's steps from 0, and would be found to follow itself."""
    changed = _changed(Path.cwd(), since)
    folders = list(dict.fromkeys(path.parent for path in changed))[:_RUNS]
    if not folders:
        return
    found, _ = discover(folders)
    for files in found[:_RUNS]:
        files.parts = [part for part in files.parts if history_of(part.path) is None]
        if not files.parts:
            continue
        yield from map(View, read_runs(files, roles=None, roots=folders, shared=()))


def _changed(root: Path, since: float) -> list[Path]:
    found: list[tuple[float, Path]] = []
    looked = 0
    for folder, inner, names in os.walk(root):
        inner[:] = [d for d in inner if not d.startswith((".", "postmortem-report")) and d not in _SKIPPED]
        for name in names:
            looked += 1
            path = Path(folder, name)
            try:
                when = path.stat().st_mtime
            except OSError:
                continue
            if when >= since - 1:
                found.append((when, path))
        if looked > _FILES:
            break
    return [path for _, path in sorted(found, key=lambda f: -f[0])]
