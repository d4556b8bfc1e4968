"""The results that the processes of a watched program have written so far: the launcher's side of `agent.Report`."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.attach.missing import bad_start
from postmortem.attach.steps import Pass
from postmortem.attach.turns import unlike
from postmortem.replay.roll.level import COURSE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


NO_OPTIMIZER = "the program has made no optimizer, so that nothing tells where a step of it begins"
"""Why a fault of such a program is not examined, nor could be by another run."""
_STOPPED = (-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a command that somebody ended."""


@dataclass(slots=True)
class Process:
    """One process of the program that made an optimizer, or raised.

    passes: its backward passes. ticks: number of ticks that have ended. fault, culprit, raised: the lines of these
    kinds, None where there was none. unexamined: why there is no culprit; `again`: another run could name it. ended:
    it came to its end by itself. captures: what was written, or why not. recalled: of a program that goes on from a
    capture.
    """

    pid: int
    rank: int | None = None
    argv: tuple[str, ...] = ()
    passes: list[Pass] = field(default_factory=list)
    ticks: int = 0
    fault: dict[str, Any] | None = None
    culprit: dict[str, Any] | None = None
    raised: dict[str, Any] | None = None
    unexamined: str = ""
    again: bool = False
    ended: bool = False
    captures: list[dict[str, Any]] = field(default_factory=list)
    recalled: dict[str, Any] | None = None

    @property
    def names_culprit(self) -> bool:
        """Something is at fault in this process."""
        return self.culprit is not None and self.culprit["culprit"].get("phase") != "none"

    @property
    def others(self) -> set[int]:
        """The ticks before the fault that step another optimizer than the one at fault."""
        if self.fault is None:
            return set()
        return unlike([(tick, optimizer) for tick, optimizer in self.fault.get("turns", ())], self.fault["tick"])

    def course(self, tick: int) -> list[float]:
        """The finite losses of the ticks before, of each that of its last backward pass; of the same optimizer."""
        others = self.others
        last = {p.tick: p.loss for p in self.passes if p.tick < tick and p.tick not in others}
        return [loss for loss in last.values() if math.isfinite(loss)][-COURSE:]

    def take(self, line: dict[str, Any]) -> None:
        """One line of its file."""
        kind = line.pop("kind")
        if kind == "start":
            self.rank, self.argv = line["rank"], tuple(line["argv"])
        elif kind in ("tick", "fault"):
            self.passes += [Pass(line["tick"], float(loss)) for loss in line.pop("losses")]
            self.rank = line.get("rank", self.rank)
            if kind == "tick":
                self.ticks = line["tick"] + 1
            else:
                self.fault = line
        elif kind == "culprit":
            self.culprit = line
            if self.fault is not None and line["tick"] < self.fault["tick"]:  # as it was repeated
                self.fault = {**self.fault, "tick": line["tick"], "what": line["what"], "seen": self.fault["tick"]}
        elif kind == "unexamined":
            self.unexamined, self.again = line["why"], bool(line.get("again"))
        elif kind == "capture":
            self.captures.append(line)
        elif kind == "recalled":
            self.recalled = line
        elif kind == "raised":
            self.raised = self.raised or line
        elif kind == "end":
            self.ended = True


class Answers:
    """The processes of a session, read as their files grow."""

    def __init__(self, session: Path) -> None:
        self._folder, self._notes = session / "processes", session / "notes"
        self._read: dict[int, int] = {}
        self.processes: dict[int, Process] = {}

    def poll(self) -> bool:
        """Reads what is new; whether there was any."""
        new = False
        for path in sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else ():
            pid = int(path.stem)
            with path.open("rb") as file:
                file.seek(self._read.get(pid, 0))
                whole, end, _ = file.read().rpartition(b"\n")
            self._read[pid] = self._read.get(pid, 0) + len(whole) + len(end)
            process = self.processes.setdefault(pid, Process(pid))
            for line in whole.splitlines():
                process.take(json.loads(line))
                new = True
        return new

    @property
    def trainers(self) -> list[Process]:
        """Those that did a step of a training, or failed in their first."""
        return [p for p in self.processes.values() if p.ticks or p.fault]

    def other_ranks(self, process: Process) -> list[list[Pass]]:
        """The backward passes of the other ranks, each of the last process that had it."""
        ranks = {p.rank: p.passes for p in self.trainers if p.rank is not None and p.rank != process.rank}
        return [ranks[rank] for rank in sorted(ranks)] if process.rank is not None else []

    def of_ranks(self) -> dict[int, list[Pass]]:
        """The backward passes of each rank, of the last process that had it."""
        return {p.rank: p.passes for p in self.trainers if p.rank is not None and p.passes}

    def first_ended(self) -> tuple[int, int] | None:
        """The rank that ended first with a failure, and its exit code (-n: signal n), as their launcher tells it."""
        told = [p.raised for p in self.processes.values() if p.raised is not None and "first_rank" in p.raised]
        return next(((int(line["first_rank"]), int(line["first_code"])) for line in told), None)

    @property
    def attached(self) -> bool:
        """Some process of the program imported torch under our eyes."""
        return (self._notes.parent / "attached").exists()

    def unseen(self, code: int | None, said: str = "", command: Sequence[str] = ()) -> str:
        """That no training was seen, and why. code: the exit code of the command, which leads where it failed, -n where
        signal n ended it, None where it was stopped; said: its last words, which tell of a bad start by themselves."""
        hidden = "python -I, -E, -S, `env -i`, another machine or a container keep out what watches"
        hidden = f"if it trained: {hidden}" if code else hidden
        start = bad_start(said, command) if code else None
        why = "; ".join(self.notes()) or (start if start is not None else "" if self.attached else hidden)
        seen = f"no process of the command stepped an optimizer{f' ({why})' if why else ''}"
        words = f": {said}" if said else ""
        if code is None:
            return f"{seen}; the command was stopped{words}"
        if code == 0:
            return f"{seen}; the command ended with exit code 0{f', its last line{words}' if said else ''}"
        by = exit_words(code)
        if code in _STOPPED:
            return f"the command was ended by {by}, as by Ctrl-C or a cancelled job{words}; until then {seen}"
        return f"the command failed with {by}{words}; {seen}"

    @staticmethod
    def failure(code: int | None, said: str) -> str:
        """How a command ended by itself with an error, with its last words; "" where it did not or was stopped."""
        if code is None or code == 0 or code in _STOPPED:
            return ""
        return f"the program failed with {exit_words(code)}{f': {said}' if said else ''}"

    def notes(self) -> list[str]:
        """What hindered us, one line each."""
        files = sorted(self._notes.iterdir()) if self._notes.is_dir() else []
        return list(dict.fromkeys(line for f in files for line in f.read_text(errors="replace").splitlines()))

    def at_fault(self) -> Process | None:
        """The process to answer for the program: with a culprit, else with the first fault, else with an exception.

        In a distributed training other ranks get non-finite values with the gradients, and die of the lost connection.
        """
        named = [p for p in self.trainers if p.culprit is not None and p.culprit["culprit"].get("phase") != "none"]
        failed = [p for p in self.trainers if p.fault is not None]
        for some in (named, failed):
            if some:
                return min(some, key=_first)
        # a launcher raises as well, when one of its ranks has ended
        raised = [p for p in self.processes.values() if p.raised is not None and "first_rank" not in p.raised]
        own = [p for p in raised if p.ticks or p.fault] or raised
        return min(own, key=lambda p: p.raised["time"] if p.raised else 0.0, default=None)


def exit_words(code: int) -> str:
    """The exit code of a process that failed, or the signal that ended it."""
    return f"exit code {code}" if code > 0 else f"signal {-code} ({_signal_name(-code)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _first(process: Process) -> tuple[int, bool, int]:
    """Sort key: the first tick, and in it the loss, which is a rank's own, before parameters, which all ranks share."""
    assert process.fault is not None
    return process.fault["tick"], process.fault["what"] in ("parameter", "buffer"), process.rank or 0
