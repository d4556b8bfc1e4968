"""The program's side: forks a copy that sleeps, and wakes it at a fault."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach import boundaries
from postmortem.attach.boundaries.current import before_scaling, listener
from postmortem.attach.measure.budget import Budget, Laps, Prepaid, clock, in_the_kernel
from postmortem.attach.measure.owned import Owned
from postmortem.attach.observer import Observer
from postmortem.attach.sandbox import descriptors
from postmortem.attach.standby.alone import among_others, can_be_alone
from postmortem.attach.standby.forks import end, fork, heard, receive, send
from postmortem.attach.standby.journal import Journal
from postmortem.attach.standby.loaders import Record
from postmortem.attach.standby.plan import bits, total
from postmortem.attach.standby.shards import gathered
from postmortem.attach.turns import KEPT, unlike
from postmortem.replay.roll.level import COURSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.attach.flags import Fault
    from postmortem.attach.standby.attempt import Attempt


_AMONG_OTHERS = 20.0
"""CPU seconds that copies of a rank may cost in addition to their share: each is good for one tick only, so that a
short training is covered in every tick, and a long one in as many as the share allows."""
_RENEWALS = 8
"""Copies that are made in addition, because the program has started a process."""
_FORKING = 30.0
"""Seconds within which a new copy says that it is there; it takes some milliseconds."""
_READY = b"\n"  # from the copy: it shares nothing with the program any more


@dataclass(slots=True)
class _Sleeper:
    """A copy. forked: the tick at whose end it was forked; began: when, in monotonic seconds."""

    process: int
    request: Owned
    answer: Owned
    forked: int
    began: float


class Standby(Observer):
    """Keeps at most one copy asleep. Who watches the program passes the events `batch`, `loss` and `abandoned` on.

    share: what copies may cost, as a share of the time of the ticks between them; see `due`. prepaid: none is made
    before it is earned.
    """

    def __init__(self, *, share: float = 0.03, prepaid: bool = False) -> None:
        self.share = share
        self.record = Record()
        self._journal = Journal()
        self._copy: _Sleeper | None = None
        self._losses: list[tuple[int, str]] = []
        self._passes = self._ended = self._usual = 0  # backward passes: since the copy, to the last tick, of that tick
        self.course: deque[tuple[int, float]] = deque(maxlen=KEPT)
        """The last ticks with their losses, of each that of its last backward pass; told by who watches the program. A
        fault may be noticed some ticks later, so that its own tick and others after it can be among them."""
        self._thread = 0  # the one that made the copy
        self.budget: Budget = Prepaid(share) if prepaid else Budget(share)
        self._laps = Laps(in_the_kernel)
        self._fresh = False
        self.burden = 0.0
        """CPU seconds that ticks took longer because of a copy."""
        self._compiled = compiled_frames()
        self._started, self._renewals = listener.processes, _RENEWALS
        self.hindered = False
        """A copy could not be made, and none will be tried again."""

    # ---- what happens in the program

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """Records what a loader gives."""
        self.record.took(loader, index, batch)
        if self.record.full and self._copy is not None:
            self.retire()  # nobody can repeat what it does not know
        return batch

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        """Records that it gives none: the end of an iteration."""
        self.record.refused(loader, index, error)

    def receive(self, way: int, source: Any, ask: Callable[[], Any]) -> Any:
        """Records what another thread or process gives to the one that trains."""
        if self._copy is None or threading.get_ident() != self._thread:
            return ask()
        value = self.record.received(way, ask)
        if self.record.full:
            self.retire()
        return value

    def loss(self, loss: torch.Tensor) -> None:
        """Records the loss, which an attempt has to repeat."""
        self._passes += 1
        if self._copy is not None:
            with torch.no_grad():
                self._losses.append((listener.ticks, bits(total(before_scaling(loss)))))

    def abandoned(self, loss: torch.Tensor) -> None:
        """Records a loss that the program leaves out."""
        if self._copy is not None:
            self._losses.append((listener.ticks, bits(float(loss.detach().sum()))))

    # ---- a copy

    @staticmethod
    def possible() -> bool:
        """Whether this process can be forked: CUDA is not in use, and other ranks are talked to by gloo only."""
        if not hasattr(os, "fork") or (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
            return False
        return not among_others() or can_be_alone()

    def due(self) -> bool:
        """Called at the end of each tick: whether the next copy is worth its cost, as measured so far.

        Most of it comes after the fork: every page that the program writes is copied once.
        """
        self._usual, self._ended = self._passes - self._ended, self._passes
        took, more = self._laps.lap(burdened=self._fresh)
        self.budget.earn(took)
        self.budget.spent += more
        self.burden += more
        if isinstance(self.budget, Prepaid):
            due = self.budget.due()
            if among_others() and not due:
                self.retire()
        elif among_others():
            # the gradients of earlier ticks came from all ranks, and the copy has only this one: good for one tick
            self.budget.allowance = _AMONG_OTHERS
            due = self.share >= 1.0 or self.budget.due()
            if not due and self._copy is not None:
                self.retire()
        else:
            due = self.budget.due()
        self._fresh = False
        if isinstance(self.budget, Prepaid):
            return due
        # an older copy would have to compile again, which needs files, or to start a process again
        return due or compiled_frames() != self._compiled or self._outdated() or self._lost()

    def rested(self, took: float, ticks: int) -> None:
        """So many ticks without a copy have taken so long together."""
        self.budget.earn(took)
        self._laps.lap(ticks=ticks)

    def _lost(self) -> bool:
        """The program has closed what was open: nobody can ask the copy any more."""
        return self._copy is not None and self._copy.request.fd is None

    def _outdated(self) -> bool:
        """The program has started processes since the copy; one that does so in every tick is not copied as often."""
        if listener.processes == self._started or not self._renewals:
            return False
        self._renewals -= 1
        return True

    def take(self, tick: int) -> Attempt | None:
        """Forks a copy at the end of `tick`, in place of the one before. Returns None in the program.

        In a child that repeats the program from here, later, an `Attempt` is returned, to which the events go already:
        the caller has nothing to do but to go back into the program.
        """
        if self.hindered or not self.possible():
            return None
        began, busy = time.monotonic(), clock()
        self.retire()
        self.record.reach(self._passes)
        self._passes = self._ended = 0
        self._thread = threading.get_ident()
        gathered.begin()
        wake, request = os.pipe()
        answer, told = os.pipe()
        process = fork()
        if process == 0:
            os.close(request)
            os.close(answer)
            return self._sleep(wake, told, tick)
        os.close(wake)
        os.close(told)
        # Until then the program must not go on; a copy that ended at once is found out when it is asked.
        if not heard(answer, _FORKING):
            self._give_up(process, request, answer)
            return None
        os.read(answer, len(_READY))
        self.record.fork()
        self._journal.begin()
        self._losses = []
        self._compiled, self._started = compiled_frames(), listener.processes
        self._copy = _Sleeper(process, Owned(request), Owned(answer), tick, began)
        self.budget.spent += max(clock() - busy, 0.0)
        self._fresh = True
        self._laps.restart()
        return None

    def _give_up(self, process: int, *pipes: int) -> None:
        """A copy that does not come to itself waits for a thread that was not copied, and so would the next one."""
        end(process)
        for fd in pipes:
            os.close(fd)
        self.hindered = True
        gathered.end()

    def _sleep(self, wake: int, told: int, tick: int) -> Attempt:
        """What the copy does; returns in its children only."""
        self._journal.end()
        try:
            # Now, not when it is woken: the program reads on in its files, and writes into memory that is shared.
            descriptors.silence([wake, told])
            os.write(told, _READY)
            request = {**receive(wake), "forked": tick}
        except (EOFError, OSError):
            os._exit(0)
        return _woken(self.record, request, told)

    @property
    def forked(self) -> int | None:
        """The tick at whose end the copy was forked; None where there is none."""
        return self._copy.forked if self._copy is not None else None

    def retire(self) -> None:
        """Ends the copy, if there is one."""
        if self._copy is not None:
            process = self._copy.process
            self.leave()
            end(process)

    def leave(self) -> None:
        """For a process that the program forked: the copy is that of the one before."""
        if self._copy is not None:
            self._copy.request.close()
            self._copy.answer.close()
            self._copy = None
            gathered.end()

    def investigate(
        self,
        fault: Fault,
        *,
        fixes: bool = True,
        seconds: float = 300.0,
        capture: dict[str, Any] | None = None,
        above: float | None = None,
    ) -> dict[str, Any] | None:
        """Wakes the copy and returns its answer; None where there is none that was forked before the tick at fault.

        The answer has only JSON types: `repeated` (the attempt without a change failed in the same way, with the same
        losses bit for bit), `tick`, `culprit` as `Culprit.as_json` gives it, `micro_batch` where the tick has several,
        `attempts` and `seconds`; `error` where it could not be worked out. seconds: it may take so long. capture: where
        the step is stored as well, see `keeping`; for a fault of the kind "requested" nothing else is done. above: for
        one of the kind "jump", the loss from which on one is a jump.
        """
        copy = self._copy
        if copy is None or fault.tick <= copy.forked:
            return None
        asking, answering = copy.request.fd, copy.answer.fd
        if asking is None or answering is None:  # the program has closed what was open
            self.retire()
            return None
        others = unlike(listener.turns, fault.tick) if fault.kind != "gradient-jump" else set()
        request = {
            "tick": fault.tick,
            "kind": fault.kind,
            "losses": [pair for pair in self._losses if pair[0] <= fault.tick],
            "since": self.record.portable(),
            "on_disk": self._journal.before,
            "gathered": gathered.rows,
            "passes": self._usual,
            "threads": len(listener.threads),
            "course": [loss for tick, loss in self.course if tick < fault.tick and tick not in others][-COURSE:],
            "others": sorted(others),
            "seconds": 20.0 + 30.0 * (time.monotonic() - copy.began),
            "fixes": fixes,
            "capture": capture,
            "above": above,
        }
        try:
            send(asking, request, seconds)
            answer: dict[str, Any] = receive(answering, seconds)
        except TimeoutError:
            answer = {"error": f"to repeat the step took longer than {seconds:.0f} s", "tick": fault.tick}
        except (EOFError, BrokenPipeError):
            answer = {"error": "the copy of the process ended without an answer", "tick": fault.tick}
        self.retire()
        return answer


def compiled_frames() -> int:
    """How many functions torch.compile has compiled in this process."""
    known = sys.modules.get("torch._dynamo.utils")
    return int(known.counters["frames"]["ok"]) if known is not None else 0


def _woken(record: Record, request: dict[str, Any], told: int) -> Attempt:
    from postmortem.attach.standby.attempt import Attempt
    from postmortem.attach.standby.copy import Become, Copy
    from postmortem.attach.standby.investigate import investigate

    boundaries.exchange(Observer())
    try:
        answer = investigate(Copy(record, request, told, Attempt), request)
    except Become as child:
        attempt: Attempt | None = child.attempt
        os.close(told)
    except Exception as error:  # noqa: BLE001 - a fault of ours is told, not raised in the middle of the user's program
        answer = {"error": f"{type(error).__name__}: {error}", "tick": request["tick"]}
        attempt = None
    else:
        attempt = None
    if attempt is None:
        with suppress(BrokenPipeError):
            send(told, answer)
        os._exit(0)
    attempt.begin()
    return attempt
