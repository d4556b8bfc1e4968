"""The sleeping copy after it is woken: it forks a child for each attempt and collects the results."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.attach.sandbox import descriptors, landlock, metadata
from postmortem.attach.standby.alone import cut_off
from postmortem.attach.standby.forks import end, fork, receive, send, settle_down
from postmortem.attach.standby.plan import Plan, Reply
from postmortem.attach.standby.scene import Repeatable, Scene
from postmortem.attach.standby.shards import gathered
from postmortem.attach.standby.trackers import cut_off_trackers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postmortem.attach.standby.loaders import Record

__all__ = ["Become", "Copy", "protect"]


class Become(BaseException):
    """Raised in a new child: leaves the investigation, whose frames lie between the copy's wake-up and here.

    A BaseException, so that nothing on the way takes it for an error.
    """

    def __init__(self, attempt: Any) -> None:
        super().__init__("this process is an attempt")
        self.attempt = attempt


class Copy(Repeatable):
    """The scene in the sleeping copy. seconds: an attempt may take so long. asked: how many were made."""

    where = "repeated from a copy of the process"
    device = "cpu"

    def __init__(
        self,
        record: Record,
        request: Mapping[str, Any],
        answer: int,
        attempt: Callable[[Scene, Plan, Callable[[Reply], None]], Any],
    ) -> None:
        settle_down()
        asked = request.get("capture")
        allowed = Path(asked["folder"]).absolute() if asked else None
        protect(keep=answer, allow=[allowed] if allowed is not None else [])
        cut_off()
        cut_off_trackers()
        gathered.take(request["gathered"])
        super().__init__(record, request["tick"], request["kind"], request["since"])
        self.on_disk = {
            path: before
            for path, before in request["on_disk"].items()
            if allowed is None or not (allowed.is_relative_to(path) or Path(path).is_relative_to(allowed))
        }
        self._attempt = attempt
        self.seconds: float = request["seconds"]
        self.asked = 0
        self._threads: int = request.get("threads", 1)

    def ask(self, plan: Plan) -> Reply:
        """One attempt. Returns in the copy; in the child it raises `Become`."""
        self.asked += 1
        reading, writing = os.pipe()
        child = fork()
        if child == 0:
            os.close(reading)
            descriptors.silence([writing])  # reading a file moves its place for the copy as well
            raise Become(self._attempt(self, plan, functools.partial(send, writing)))
        os.close(writing)
        began = time.monotonic()
        try:
            reply: Reply = receive(reading, self.seconds)
        except TimeoutError:
            reply = Reply(failed=f"it had not ended after {time.monotonic() - began:.0f} s")
        except EOFError:
            why = ": the program trains in several threads, of which a copy has one" if self._threads > 1 else ""
            reply = Reply(failed=f"its process ended without an answer{why}")
        finally:
            os.close(reading)
            end(child)
        return reply


def protect(*, keep: int, allow: Sequence[Path] = ()) -> None:
    """Nothing that this process and its children do from here on leaves a trace, but for the descriptor `keep` and the
    folders `allow`."""
    descriptors.silence([keep])
    landlock.lock_writes(allow)
    metadata.lock()
