"""The folder of one launch, in the user's cache: the plan, the results, and what the rerun wrote."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.attach.sandbox import overlay

if TYPE_CHECKING:
    from collections.abc import Mapping


def new_session(base: Mapping[str, str] | None = None) -> Path:
    """A fresh folder, only for this user. What launchers left that were killed is removed."""
    base = os.environ if base is None else base
    cache = Path(base.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parent = cache / "postmortem" / "launches"
    name = f"{platform.node()}-{os.getpid()}-"
    with contextlib.suppress(OSError):  # a home that cannot be written: somewhere else
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        return Path(tempfile.mkdtemp(prefix=name, dir=parent)).resolve()
    return Path(tempfile.mkdtemp(prefix="postmortem-")).resolve()


def _sweep(parent: Path) -> None:
    """Only folders of this machine: the cache may be shared by many."""
    if not Path("/proc/self").exists():
        return
    for folder in parent.glob(f"{glob.escape(platform.node())}-*-*"):
        launcher = folder.name.removeprefix(f"{platform.node()}-").partition("-")[0]
        if not (Path("/proc", launcher).exists() or (folder / "keep").exists()):
            overlay.remove(folder)
