"""The attempts that earlier runs of the command made, kept in the folder of the session.

The investigation asks the same in the same order: what is known already is not run again. Everything here is written
and read by processes of the user's command, in a folder that only the user can enter.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.attach.standby.given import Given
    from postmortem.attach.standby.plan import Key, Plan, Reply

FILE, MORE = "attempts", "more"
"""In the session: what is known; there if another run of the command is wanted."""


class Known:
    """first: the answer of the tick that was traced when it failed, and given: what it was given, see `Given`; None in
    the first of these runs."""

    def __init__(self, session: Path) -> None:
        self._path, self._more = session / FILE, session / MORE
        self.first: dict[str, Any] | None = None
        self.given: dict[str, Any] | None = None
        self._replies: list[tuple[str, Reply]] = []
        # one that was killed while it wrote: what is whole counts
        with suppress(FileNotFoundError, EOFError, pickle.UnpicklingError), self._path.open("rb") as file:
            self.first, self.given = pickle.load(file)
            while True:
                self._replies.append(pickle.load(file))

    @property
    def first_answer(self) -> dict[str, Any]:
        """The first answer, which is there by now."""
        assert self.first is not None
        return self.first

    def since(self) -> dict[Key, Any]:
        """The batches of the tick, by key."""
        told = self.given or {"before": (), "drawn": ()}
        return {**dict(told["before"]), **{key: batch for key, batch, _ in told["drawn"]}}

    def begin(self, first: dict[str, Any], given: Given) -> None:
        """The tick was traced."""
        self.first, self.given = first, given.portable()
        self._write("wb", (self.first, self.given))

    def reply(self, number: int, plan: Plan) -> Reply | None:
        """The reply to the attempt with this number; None if it was not made, or another one was."""
        if number >= len(self._replies):
            return None
        mark, reply = self._replies[number]
        if mark == _mark(plan):
            return reply
        del self._replies[number:]
        self._write("wb", (self.first, self.given), *self._replies)
        return None

    def add(self, plan: Plan, reply: Reply) -> None:
        """An attempt was made."""
        self._replies.append((_mark(plan), reply))
        self._write("ab", self._replies[-1])

    def more(self) -> None:
        """Asks for another run of the command."""
        self._more.touch()

    def _write(self, mode: str, *values: Any) -> None:
        data = b"".join(map(pickle.dumps, values))
        with self._path.open(mode) as file:
            file.write(data)


def _mark(plan: Plan) -> str:
    """What tells one attempt from another."""
    o = plan.overrides
    values = (o.clip, o.lr, o.dtype, o.casts_follow, o.loss_scale, o.eps, o.batch is None, o.fresh_optimizer)
    modes = [type(mode).__name__ for mode in plan.modes]
    others = (plan.tracer is None, plan.change is None, plan.survey, plan.unfused)
    return repr((plan.until, values, modes, sorted(plan.mask), others))
