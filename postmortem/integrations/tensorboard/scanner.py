"""Scans TensorBoard's log folder in a process of its own, so that nothing of it can harm the server."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

_OLD = 60.0  # seconds after which an opened tab scans again
_LONGEST = 1800.0  # seconds that a scan may take


class Scanner:
    """The last scan of the log folders and the one under way, if any. All methods return at once."""

    def __init__(self, logdir: str, logdir_spec: str = "") -> None:
        """`logdir` and `logdir_spec` as TensorBoard's flags: one folder, or ``name:folder,name:folder``."""
        specs = [part.strip() for part in logdir_spec.split(",") if part.strip()]
        self._folders = [logdir] if logdir else [part.rpartition(":")[2] for part in specs if "://" not in part]
        self._lock = threading.Lock()
        self._began: float | None = None
        self._done: dict[str, Any] = {"state": "scanning"}
        self._page = ""
        self._running = False

    def want(self, *, again: bool = False) -> None:
        """Starts a scan if none runs and the last one is old, or `again` is set."""
        with self._lock:
            fresh = self._began is not None and time.monotonic() - self._began < _OLD
            if self._running or (fresh and not again):
                return
            self._running, self._began = True, time.monotonic()
        threading.Thread(target=self._scan, name="postmortem", daemon=True).start()

    def state(self) -> dict[str, Any]:
        """What the tab shows: `state` ("scanning", "ready", "failed"), and the result of the last scan."""
        with self._lock:
            return {**self._done, "running": self._running}

    def page(self) -> str:
        """The HTML report of the last scan; empty before the first one."""
        with self._lock:
            return self._page

    def _scan(self) -> None:
        page = self._page
        try:
            done, page = _in_a_process(self._folders)
        except Exception as error:  # noqa: BLE001 - the tab says what it was
            done = {"state": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
        with self._lock:
            self._done, self._page, self._running = done, page, False


def _in_a_process(folders: list[str]) -> tuple[dict[str, Any], str]:
    if not folders or any("://" in folder for folder in folders):
        return {"state": "failed", "message": "only local log folders can be scanned"}, ""
    with tempfile.TemporaryDirectory(prefix="postmortem-") as made:
        command = [sys.executable, "-m", "postmortem.integrations.tensorboard.scan", made, *folders]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LONGEST, check=False
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return {"state": "failed", "message": last[:500]}, ""
        found = json.loads(Path(made, "findings.json").read_text("utf-8"))
        return {"state": "ready", **found}, Path(made, "page.html").read_text("utf-8")
