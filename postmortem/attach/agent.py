"""The part of postmortem in a process of the user's program: it watches, investigates a fault, and writes the result.

What it has to do is in ``plan.json`` of the session; what it saw goes, one JSON object a line, to
``processes/PID.jsonl`` there, from the first optimizer on.
Only the standard library, torch, and what needs no more of postmortem may be imported here.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach import boundaries
from postmortem.attach.answers import NO_OPTIMIZER
from postmortem.attach.boundaries.current import listener
from postmortem.attach.captures import Captures
from postmortem.attach.flags import Fault, Flags, Tick, gradient_norm, gradients
from postmortem.attach.jumps import Jump
from postmortem.attach.levels.watch import Levels
from postmortem.attach.measure.owned import Owned
from postmortem.attach.measure.reductions import all_finite
from postmortem.attach.observer import Observer
from postmortem.attach.standby import Standby
from postmortem.attach.standby.alone import among_others
from postmortem.core.culprit import Culprit
from postmortem.replay.roll.level import COURSE
from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARE = {"replay": 1.0, "run": 0.02}
"""What copies of the process may cost, as a share of the time of the ticks: a rerun is short, and every attempt that
repeats one tick only is worth it."""
_FLAGS = {"replay": 1e9, "run": 0.007}
"""The same for looking at parameters."""

_OF_A_STEP = ("torch/nn/modules/module.py", "torch/utils/data/dataloader.py", "torch/autograd/__init__.py")
"""Files of torch that a step goes through, and the preparations of a training do not."""
AFTER_SIGTERM = 10.0
"""Seconds that a capture may take then: Slurm and Kubernetes kill 30 s after it."""

_NO_FORK = "the process cannot be forked: it uses a GPU, or talks to other ranks by another way than gloo"
_HINDERED = "a forked copy of the process did not run: it waits for a thread or a lock that was not copied"


class Report:
    """What this process tells the launcher; the file is there once there is something to tell."""

    def __init__(self, session: Path) -> None:
        self._session, self._folder, self._notes = session, session / "processes", session / "notes"
        self._file: Owned | None = None

    def note(self, text: str) -> None:
        """What hinders us, in one line."""
        self._notes.mkdir(exist_ok=True)
        with (self._notes / str(os.getpid())).open("a") as file:
            file.write(" ".join(text.split()) + "\n")

    def stopped(self) -> None:
        """The training is over, also where a launcher would start it again."""
        (self._session / "stopped").touch()

    def line(self, kind: str, **fields: Any) -> None:
        """Appends one object."""
        new = self._file is None
        fd = self._file.fd if self._file is not None else None
        if fd is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(self._folder / f"{os.getpid()}.jsonl", flags, 0o600)
            self._file = Owned(fd)
        if new:
            self.line("start", pid=os.getpid(), rank=rank(), argv=sys.argv, started=time.time())
        os.write(fd, (json.dumps({"kind": kind, **fields}) + "\n").encode())


class Agent(Flags):
    """The flags, the copy that repeats a step, and what follows from a fault: see the plan in `driver`."""

    def __init__(self, session: Path, plan: dict[str, Any]) -> None:
        watching = plan["mode"] == "run"
        # An update can only be left out before it is made, so that `skip` waits for a device.
        late = plan.get("deferred", False) if watching and plan["on_fault"] != "skip" else None
        scale = plan.get("scale", 1.0)
        super().__init__(self.failed, self.tick_ended, share=_FLAGS[plan["mode"]] * scale, deferred=late)
        self.session, self.plan = session, plan
        self.report = Report(session)
        self.standby = Standby(share=_SHARE[plan["mode"]] * scale, prepaid="budget" in plan)
        self.captures = Captures(plan.get("capture"), self._terminated)
        self._capturing: int | None = None
        self._jump = Jump(**plan["jump"]) if "jump" in plan else None
        self._norms: list[float] = []
        self._levels = self._measuring()

    def in_fork(self) -> Observer:
        """A new one: the process may be a rank that trains. Nothing is written before it does."""
        self.leave()
        return type(self)(self.session, self.plan)

    def leave(self) -> None:
        """For a process that the program forked: what is held here belongs to the one before."""
        self.standby.leave()
        self.captures.leave()
        if self._levels is not None:
            self._levels.leave()

    def _measuring(self) -> Levels | None:
        """Who keeps the history, if one is to be kept."""
        folder = self.plan.get("history")
        if folder is None:
            return None
        level, scale = self.plan.get("level", "basic"), self.plan.get("scale")
        return Levels(level, Path(folder), rank, self.later, self.report.note, scale)

    # ---- what the copy has to know

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """Recorded, for the copy."""
        return self.standby.batch(loader, index, batch)

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        """Recorded, for the copy."""
        self.standby.no_batch(loader, index, error)

    def receive(self, way: int, source: Any, ask: Callable[[], Any]) -> Any:
        """Recorded, for the copy."""
        return self.standby.receive(way, source, ask)

    def loss(self, loss: torch.Tensor) -> None:
        """Recorded and read."""
        if self._levels is not None:
            self._levels.loss(loss)
        self.standby.loss(loss)
        super().loss(loss)
        jump = self._jump
        if jump is None or jump.gradient or boundaries.current() is not self:
            return
        if jump.at(self._losses[-1]) and self.check():
            self._found("jump")

    def backward_done(self) -> None:
        """Measured."""
        if self._levels is not None:
            self._levels.backward_done()
        if self._jump is None or not self._jump.gradient or not math.isfinite(norm := gradient_norm()):
            return
        if self._jump.at(norm) and self.check():
            self._found("gradient-jump")
        else:
            self._norms.append(norm)

    def abandoned(self, loss: torch.Tensor) -> None:
        """Recorded and read."""
        self.standby.abandoned(loss)
        super().abandoned(loss)

    def ready(self, optimizer: torch.optim.Optimizer) -> None:
        """A training begins: the first tick can be repeated as well."""
        super().ready(optimizer)
        self.captures.listen()
        if listener.ticks == 0:
            self._sleep(-1)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Where updates are to be skipped, their gradients are looked at first."""
        if self.plan["on_fault"] == "skip" and not listener.unscaled and not all_finite(gradients([optimizer])):
            self._found("gradient")
            boundaries.current().before_update(optimizer)
        elif self._levels is not None:
            self._levels.before_update(optimizer)

    def skipped_by_the_program(self) -> None:
        """The program has seen non-finite gradients itself, and leaves out their update."""
        self._found("gradient")

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """Measured; whose parameters have changed is remembered."""
        if self._levels is not None:
            self._levels.after_update(optimizer, skipped)
        super().after_update(optimizer, skipped)
        self.captures.updated(optimizer)

    def tick(self, number: int) -> None:
        """Looked at; then a new copy is made, if it is worth its cost."""
        if self._levels is not None:
            self._levels.tick(number)
        super().tick(number)
        if boundaries.current() is not self:
            return
        if number == self._capturing:
            self._capture(number)
        requested = self.captures.requested()
        if requested:
            self._capturing = number + 1
        if (self.standby.due() or requested) and self.check(Tick(number, [])):
            self._sleep(number)
        if self._levels is not None and boundaries.current() is self:
            self._levels.arm()
        self.laps.restart()

    def _capture(self, tick: int, seconds: float = 300.0) -> None:
        """Writes one without a fault."""
        asked = self.captures.asked(rank())
        if asked is None:
            return
        answer = self.standby.investigate(Fault(tick, "requested"), capture=asked, seconds=seconds)
        if answer is not None:
            self.report.line("capture", **(answer.get("capture") or {"error": answer["error"]}))

    def _terminated(self) -> None:
        """SIGTERM: the last step that has ended, or the one under way."""
        if boundaries.current() is self and listener.ticks:
            newest = self.standby.forked
            late = newest is not None and newest >= listener.ticks - 1
            self._capture(listener.ticks if late else listener.ticks - 1, seconds=AFTER_SIGTERM)
            if self._levels is not None:
                self._levels.close()

    def _sleep(self, tick: int) -> None:
        if self._forks():
            self.standby.take(tick)  # in a child of the copy another observer listens from here on

    def _forks(self) -> bool:
        return bool(self.plan.get("fork", True)) and not self.standby.hindered and Standby.possible()

    # ---- what is told

    def tick_ended(self, tick: Tick) -> None:
        """One line per tick."""
        self.report.line("tick", tick=tick.number, losses=tick.losses, skipped=tick.skipped)
        self.standby.course += [(tick.number, loss) for loss in tick.losses[-1:] if math.isfinite(loss)]
        if self._levels is not None:
            self._levels.told(tick)

    def failed(self, fault: Fault, tick: Tick) -> None:
        """The first fault: it is investigated, and nothing is watched after it."""
        boundaries.exchange((_Skipping if self.plan["on_fault"] == "skip" else _Bystander)(self))
        over = fault.kind in ("parameter", "buffer")
        if self._levels is not None:
            self._levels.close(None if over else tick)
        losses = [] if over else tick.losses
        more: dict[str, Any] = {"course": self._norms[-COURSE:]} if fault.kind == "gradient-jump" else {}
        more |= {"turns": list(listener.turns)} if len(listener.stepped) > 1 else {}
        self.report.line("fault", tick=fault.tick, what=fault.kind, losses=losses, rank=rank(), of=ranks(), **more)
        self._examine(fault)
        if self.plan["on_fault"] == "stop":  # at once, so that no `finally` saves over a checkpoint
            self.report.stopped()
            os._exit(0 if self.plan["mode"] == "replay" else 1)

    def _examine(self, fault: Fault) -> None:
        above = self._jump.above if self._jump is not None else None
        asked = self.captures.asked(rank())
        if fault.kind == "gradient-jump":  # what is looked at has another course than the loss
            self.standby.course.clear()
            self.standby.course += [(fault.tick - 1, norm) for norm in self._norms]
        answer = self.standby.investigate(fault, fixes=self.plan["fix"], capture=asked, above=above)
        if answer is None:
            known = listener.optimizers | listener.stepped
            why = self._without_copy() if known else NO_OPTIMIZER
            self.report.line("unexamined", why=why, again=bool(known) and not self._forks())
            return
        if "capture" in answer:
            self.report.line("capture", **answer["capture"])
        if "error" in answer:
            self.report.line("unexamined", why=answer["error"])
            return
        found = answer["culprit"]
        if self.plan["mode"] == "replay" and among_others() and not answer["repeated"]:
            # its step depends on the other ranks, which the copy does not have
            self.report.line("unexamined", why="; ".join(found["how"]), again=True)
            return
        tell(self.report, answer)

    def _without_copy(self) -> str:
        """Why there is none."""
        if not self._forks():
            return _HINDERED if self.standby.hindered else _NO_FORK
        why = "no copy of the process was there to repeat the step"
        if self.standby.record.full:
            why += ": the batches since the last one take too much memory to be kept"
        return why

    def raised(self, error: BaseException) -> None:
        """An exception that nobody caught; a non-finite value may be the reason."""
        super().raised(error)
        if boundaries.current() is not self:
            return
        if self._levels is not None:
            self._levels.close()
        tick = self.under_way()
        asked = self.captures.asked(rank())
        answer = self.standby.investigate(Fault(tick.number, "raised"), fixes=self.plan["fix"], capture=asked)
        if answer is not None and "capture" in answer:
            self.report.line("capture", **answer["capture"])
        found = Culprit.from_json(answer["culprit"]) if answer is not None and "culprit" in answer else None
        if answer is not None and found is not None and found.phase != "none":
            self.report.line("fault", tick=tick.number, what="raised", losses=tick.losses, rank=rank())
            tell(self.report, answer)
        self.report.line("raised", tick=tick.number, rank=rank(), time=time.time(), **described(error))

    def end(self) -> None:
        """The program ends by itself."""
        super().end()
        if self._levels is not None:
            self._levels.close()
        self.standby.retire()
        if listener.ticks:
            self.report.line("end", ticks=listener.ticks)


class _Bystander(Observer):
    """After the first fault only the ticks count on, for a program that goes on."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._report = agent, agent.report

    def in_fork(self) -> Observer:
        """Nobody, as nothing is watched after a fault."""
        self._agent.leave()
        return Observer()

    def raised(self, error: BaseException) -> None:
        self._report.line("raised", tick=listener.ticks, rank=rank(), time=time.time(), **described(error))

    def end(self) -> None:
        self._report.line("end", ticks=listener.ticks)


def tell(report: Report, answer: dict[str, Any]) -> None:
    """Tells the launcher what an investigation found, with what to do about it."""
    from postmortem.replay.advice import advised  # not at the top: most programs do not fail

    culprit = Culprit.from_json(answer["culprit"])
    told = {**answer, "next": advised(culprit, None) if culprit.phase != "none" else []}
    report.line("culprit", rank=rank(), **told)


class _Skipping(_Bystander):
    """Leaves out every further update with non-finite gradients. Those are the same on all ranks; losses are not."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        if not all_finite(gradients([optimizer])):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None


def rank() -> int | None:
    """The rank of this process in a distributed training; None where it is alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() if torch.distributed.get_world_size() > 1 else None
    size, number = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "")
    return int(number) if number.isdigit() and size != "1" else None


def ranks() -> int:
    """How many processes train together."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if together else 1


def described(error: BaseException) -> dict[str, Any]:
    """Type, message, file and line of an exception: the innermost frame of the user's own files. in_step: it came out
    of a module, a loader or a derivative, and not of the program's preparations."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if owner_of(f.filename) == "user"] or list(frames)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a class of the user's, with a __str__ that raises
        message = ""
    place = own[-1] if own else None
    return {
        "type": type(error).__name__,
        "message": " ".join(message.split())[:500],
        "file": place.filename if place else None,
        "line": place.lineno if place else None,
        "in_step": any(f.filename.replace(os.sep, "/").endswith(_OF_A_STEP) for f in frames),
        **_first_of_ranks(error),
    }


def _first_of_ranks(error: BaseException) -> dict[str, Any]:
    """Of a launcher (torchrun) that reports its ranks: the one that failed first, and its exit code."""
    first = getattr(error, "get_first_failure", None)
    if first is None:
        return {}
    rank, failure = first()
    return {"first_rank": rank, "first_code": failure.exitcode}
