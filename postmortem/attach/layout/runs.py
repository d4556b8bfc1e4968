"""The first process that imports torch: it forks the examination and the trials, one after another.

Which copy a process is stands in its environment, so that what it starts itself (the workers of torchrun) knows it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from postmortem.attach.layout.told import changes, read

if TYPE_CHECKING:
    from pathlib import Path

ORDER = "POSTMORTEM_LAYOUT"
_RANKS = 2
_STARTING = 90.0
"""Seconds that a copy may take to its first backward pass."""
_ENDING = 5.0


def begin(session: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """What this process is to do, None where it is no copy: then it has forked them all and does not return."""
    told = os.environ.get(ORDER)
    if told is not None:
        return dict(json.loads(told))
    importlib.import_module("torch._dynamo")  # the first optimizer of each copy would, for seconds
    runs = _Runs(session / "layout", plan)
    return runs.all()


class _Runs:
    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self._folder, self._plan = folder, plan
        self._done: list[dict[str, Any]] = []

    def all(self) -> dict[str, Any] | None:
        """In a copy: its order. In this process: ends it."""
        copy, code = self._run("look", 1, {})
        if copy is not None:
            return copy
        look = read(self._folder / "look")
        if not look.seen:  # a program that only prepares something: the copy was all of it
            os._exit(code)
        own = look.ranks > 1 or look.replicated
        tried = [] if not self._plan["fix"] else changes(look)
        if tried and not own and self._plan["ranks"] > 1:
            tried.insert(0, {"fix": "none"})
        for number, change in enumerate(tried):
            name = f"trial-{number}"
            ranks = 1 if own else min(_RANKS, self._plan["ranks"])
            copy, code = self._run(name, ranks, change)
            if copy is not None:
                return copy
            self._done.append({"run": name, "change": change, "code": code})
            self._write()
        self._write()
        (self._folder / "finished").touch()
        os._exit(0)

    def _write(self) -> None:
        (self._folder / "trials.json").write_text(json.dumps(self._done))

    def _run(self, name: str, ranks: int, change: dict[str, Any]) -> tuple[dict[str, Any] | None, int]:
        """Forks the processes of a run and waits for them. -> (the order, in a copy; the highest exit code)."""
        folder = self._folder / name
        folder.mkdir(parents=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pids = []
        for rank in range(ranks):
            order = {**self._plan, "folder": str(folder), "rank": rank, "processes": ranks, "change": change}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of threads, which are there only where something started them before
                pid = os.fork()
            if not pid:
                os.environ[ORDER] = json.dumps(order)
                return order, 0
            pids.append(pid)
        return None, self._wait(pids, folder)

    def _wait(self, pids: list[int], folder: Path) -> int:
        """Until all have ended, or enough was seen and they do not end."""
        deadline = time.monotonic() + _STARTING + self._plan["seconds"]
        codes: dict[int, int] = {}
        over: float | None = None
        while len(codes) < len(pids):
            for pid in [p for p in pids if p not in codes]:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            if over is None and any(folder.glob("*.over")):
                over = now
            failed = any(codes.values())
            if now > deadline or (over is not None and now - over > 2 * _ENDING) or failed:
                self._end([p for p in pids if p not in codes])
                return max((abs(code) for code in codes.values()), default=0) or (0 if over is not None else 1)
            time.sleep(0.02)
        return max(abs(code) for code in codes.values())

    @staticmethod
    def _end(pids: list[int]) -> None:
        """Politely first: torchrun then ends its workers."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _ENDING
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while pids and time.monotonic() < deadline:
                pids = [p for p in pids if not os.waitpid(p, os.WNOHANG)[0]]
                time.sleep(0.02)
