"""The part of postmortem in a process of the user's program: it watches, investigates a fault, and writes the result.

What it has to do is in ``plan.json`` of the session; what it saw goes, one JSON object a line, to
``processes/PID.jsonl`` there, from the first optimizer on.
Only the standard library, torch, and what needs no more of postmortem may be imported here.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.attach import boundaries
from postmortem.attach.answers import NO_OPTIMIZER
from postmortem.attach.boundaries.current import listener
from postmortem.attach.bystanders import Bystander, Skipping
from postmortem.attach.captures import Captures
from postmortem.attach.flags import Fault, Flags, Tick, gradient_norm, gradients
from postmortem.attach.jumps import Jump
from postmortem.attach.levels.watch import Levels
from postmortem.attach.measure.reductions import all_finite
from postmortem.attach.report import Report, described, rank, ranks, tell
from postmortem.attach.standby import Standby
from postmortem.attach.standby.alone import among_others
from postmortem.core.culprit import Culprit
from postmortem.replay.roll.level import COURSE

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from postmortem.attach.observer import Observer

_SHARE = {"replay": 1.0, "run": 0.02}
"""What copies of the process may cost, as a share of the time of the ticks: a rerun is short, and every attempt that
repeats one tick only is worth it."""
_FLAGS = {"replay": 1e9, "run": 0.007}
"""The same for looking at parameters."""

AFTER_SIGTERM = 10.0
"""Seconds that a capture may take then: Slurm and Kubernetes kill 30 s after it."""

_NO_FORK = "the process cannot be forked: it uses a GPU, or talks to other ranks by another way than gloo"
_HINDERED = "a forked copy of the process did not run: it waits for a thread or a lock that was not copied"


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
        boundaries.current().skipped_by_the_program()

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
        over = fault.kind in ("parameter", "buffer")
        after = Skipping if self.plan["on_fault"] == "skip" else Bystander
        left_out = fault.kind in ("gradient", "skipped-loss")
        boundaries.exchange(after(self.leave, self.report, self._levels, left_out=left_out))
        if self._levels is not None and (over or self.plan["on_fault"] == "stop"):
            self._levels.close(None if over else tick)
        elif self._levels is not None:
            self._levels.interrupt(tick)
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
