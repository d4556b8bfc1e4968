"""Without a fork: the process repeats the tick at fault itself.

Once the tick has failed, the state before it is put back, and the next time round the program's loop is an attempt at
the same tick: it gets the batches, the random numbers and the settings of that tick. The investigation is that of a
copy of the process. It thinks in a thread of its own, while the program waits; it waits while the program runs.
"""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _disable_current_modes

from postmortem.attach import boundaries
from postmortem.attach.boundaries.current import listener
from postmortem.attach.capture.state import set_randomness, set_settings
from postmortem.attach.observer import Observer
from postmortem.attach.standby.attempt import Attempt
from postmortem.attach.standby.given import Given, State, clone
from postmortem.attach.standby.jump import JUMPS
from postmortem.attach.standby.known import Known
from postmortem.attach.standby.plan import Plan, Reply
from postmortem.attach.standby.scene import Repeatable, Scene
from postmortem.replay.step.batches import tensor_map, tensors_in
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch

    from postmortem.attach.standby.course import Course
    from postmortem.attach.standby.loaders import Record
    from postmortem.attach.standby.plan import Key

_ANOTHER_WAY = "the program went another way than in the step at fault: it drew other batches"
_AGAIN = 3  # attempts at the same plan: the end of an epoch may lie before one, or a checkpoint that is written
_ENDED = "the program ended before the step could be run again"


class Repeats(Repeatable):
    """The scene, and who leads the attempts.

    course: of the program up to the tick. order: what the launcher knows of the fault, see `driver`. tell: called with
    an answer. fallback: makes the answer of the one tick that was traced when it failed. A program may end before all
    is tried, as one that raises: the command is then run again, and goes on with the attempts that are `known`.
    """

    where = "repeated in the process, from the state before the step"

    def __init__(
        self,
        record: Record,
        course: Course,
        order: Mapping[str, Any],
        tell: Callable[[dict[str, Any]], None],
        fallback: Callable[[Scene, Reply], dict[str, Any]],
    ) -> None:
        self._known = Known(Path(order["session"]))
        super().__init__(record, order["tick"], order["kind"], self._known.since())
        self.device = next((p.device.type for p in self.program.parameters.values()), "cpu")
        self.asked = 0
        self.course, self._place = course, course.here()
        self.before = State(self.program)
        self.given = Given(record, self._known.given)
        self._order, self._tell, self._fallback = order, tell, fallback
        self._losses = [(self.tick, bits) for bits in order["losses"]]
        self._plan: Plan = Plan(tracer=Tracer(), survey=True, once=True)
        self._tries = self._live = 0
        self._plans: queue.SimpleQueue[Plan | dict[str, Any]] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        if self._known.first is not None:
            self._think()

    def ask(self, plan: Plan) -> Reply:
        """One attempt; called by the investigation, in its own thread."""
        reply = self._known.reply(self.asked, plan)
        if reply is None:
            self._plans.put(plan)
            reply = self._replies.get()
            self._known.add(plan, reply)
        self.asked += 1
        return reply

    def begin(self) -> None:
        """The next attempt begins, at the boundary before the tick at fault."""
        listener.ticks, listener.backwards = self.tick, 0
        _Repeated(self, self._plan).begin(forked=False)

    def go_on(self, attempt: Attempt) -> None:
        """A tick has ended: the state before it is put back, once the program is again where it was then."""
        attempt.leave()
        if not self.course.at(self._place):
            return
        self.before.put_back()
        self.given.rewind()
        self.begin()

    def replied(self, reply: Reply) -> None:
        """What an attempt saw. Returns once it is known what comes next."""
        self._tries += 1
        if not self.given.first and self._tries < _AGAIN and self._strays(reply):
            return
        self._tries = 0
        if self.given.first:
            first = self._fallback(self, reply)
            if first["culprit"]["phase"] == "none" and self.kind not in JUMPS:
                self._tell(first)
                os._exit(0)
            self.given.keep()
            if reply.entered is not None:
                self.enters(reply.entered)
            self._known.begin(first, self.given)
            self._think()
        else:
            self._live += 1
            self._replies.put(reply)
            self._next()

    def _strays(self, reply: Reply) -> bool:
        """The program did something else than the tick at fault, or could not."""
        other = self._plan.plain and reply.losses != self._losses[: len(reply.losses)]
        return (bool(reply.failed) and reply.failed != _ENDED) or other

    def cut_short(self, reply: Reply) -> None:
        """The program comes to its end in an attempt: another run makes it, unless this is all that one can do."""
        self.ended(None if self._live else reply)

    def ended(self, reply: Reply | None) -> None:
        """The program ends, in an attempt with this reply, or between two."""
        if reply is not None:
            self._tries = _AGAIN
            self.replied(reply)
        while self._order["last"]:
            self.replied(Reply(failed=_ENDED))
        self._known.more()
        self._tell(self._known.first_answer)
        os._exit(0)

    def _think(self) -> None:
        threading.Thread(target=self._investigate, daemon=True).start()
        self._next()

    def _next(self) -> None:
        """Waits for what the investigation wants."""
        following = self._plans.get()
        if isinstance(following, Plan):
            self._plan = following
            return
        self._tell(self._final(following))
        os._exit(0)

    def _investigate(self) -> None:
        from postmortem.attach.standby.investigate import investigate  # it needs more of torch

        request = {**self._order, "forked": self.tick - 1, "passes": 0, "capture": None}
        request["losses"] = self._losses
        try:
            answer = investigate(self, request)
        except Exception as error:  # noqa: BLE001 - a fault of ours is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._plans.put(answer)

    def _final(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer; where the step could not be repeated, what its one trace showed."""
        if answer.get("repeated"):
            return answer
        why = answer.get("error") or "; ".join(answer["culprit"]["how"])
        first = self._known.first_answer
        found = first["culprit"]
        return {**first, "culprit": {**found, "how": [*found["how"], f"no change of the step was tried: {why}"]}}


class _Repeated(Attempt):
    """An attempt after which the process goes on: the first one is the tick at fault itself."""

    scene: Repeats

    def __init__(self, scene: Repeats, plan: Plan) -> None:
        super().__init__(scene, plan, scene.replied)

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """Gives the batch of the tick at fault."""
        given = self.scene.given
        if given.first:
            key = given.take(loader, index, batch)
        else:
            told = given.next(loader)
            if told is None:
                self._fail(_ANOTHER_WAY)
                given.ahead.append(batch)
                return batch
            key, kept, rng = told
            batch = self._new[key] if key in self._new else clone(kept)
            set_randomness(rng)
        given.ahead.append(batch)
        with _disable_current_modes():
            if self._survey is not None:
                self._survey.add(key, batch)
            if self.plan.tracer is not None:
                self.plan.tracer.disown(tensors_in(batch))
        return batch

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        """An epoch ends."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """With the learning rate of the tick at fault, also where the program computes it from a counter."""
        given = self.scene.given
        if given.first:
            given.update(self.scene.program, optimizer)
        elif not self.plan.unfused:
            set_settings(optimizer, given.settings_of(self.scene.program, optimizer))
        super().before_update(optimizer)

    def _replace(self) -> list[Any]:
        """Its data take the place of what the program has now, changed or not."""
        scene, given = self.scene, self.scene.given
        if given.first or scene.entered is None:
            return [] if given.first else self._ahead()
        changed = scene.batch
        for change in (self.plan.overrides.batch, self.plan.change):
            changed = change(changed) if change is not None else changed
        if self.plan.overrides.dtype not in (None, "bf16"):
            changed = tensor_map(self._changes.cast, changed)
        self.given = clone(changed)
        if scene.entered.entries:
            return self._ahead() + self._substituted(scene.entered.entries)
        if scene.entered.batches:
            self._new = dict(scene.by_key(self.given))
            self._ahead()
            self.given = scene.structured({**scene.batches, **self._new})
        return []

    def _held(self) -> Iterable[tuple[Key, Any]]:
        return super()._held() if self.scene.given.first else self.scene.given.held()

    def _ahead(self) -> list[Any]:
        """What the program has drawn ahead gets the values that it had then."""
        kept = dict(self.scene.given.before)
        for key, batch in self.scene.given.held():
            self._new[key] = self._overwritten(batch, self._new.get(key, clone(kept[key])))
        return []

    def tick(self, number: int) -> None:
        """The tick has ended, and begins again."""
        super().tick(number)
        self.scene.go_on(self)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """See `Attempt`."""
        self.scene.course.passed(optimizer)
        super().after_update(optimizer, skipped)

    def raised(self, error: BaseException) -> None:
        """The program ends in the attempt."""
        self.answer = self.scene.ended
        super().raised(error)

    def end(self) -> None:
        """See `raised`."""
        self.answer = self.scene.cut_short
        super().end()

    def _exit(self) -> None:
        self.over = True
        with _disable_current_modes():
            boundaries.exchange(_Between(self, first=self.scene.given.first))
            self.answer(self.reply)


class _Between(Observer):
    """After an attempt, up to the end of its tick."""

    def __init__(self, attempt: _Repeated, *, first: bool) -> None:
        self._attempt, self._scene, self._first = attempt, attempt.scene, first

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """The program may hold it in the next attempt."""
        self._scene.given.ahead.append(batch)
        return batch

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The tick at fault goes on to its end."""
        if self._first:
            self._scene.given.update(self._scene.program, optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """Where the program is."""
        self._scene.course.passed(optimizer)

    def tick(self, number: int) -> None:
        """The tick begins again."""
        self._scene.go_on(self._attempt)

    def raised(self, error: BaseException) -> None:
        """The program does not go on after a non-finite step."""
        self._scene.ended(None)

    def end(self) -> None:
        """See `raised`."""
        self._scene.ended(None)
