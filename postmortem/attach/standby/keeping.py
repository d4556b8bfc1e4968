"""Writes a capture from the sleeping copy: a child runs to the start of the step and stores its state.

The program itself does nothing for it, and the state is that before the step, also where the copy is older.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.attach.capture.folder import Draft, Place
from postmortem.attach.capture.origin import origin
from postmortem.attach.capture.state import held
from postmortem.attach.standby.plan import Plan, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.attach.standby.program import Program
    from postmortem.attach.standby.scene import Repeatable


def keep(copy: Repeatable, request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the capture that ``request["capture"]`` asks for -> its path and size, or why there is none."""
    asked = request["capture"]
    began = time.monotonic()
    place = Place(Path(asked["folder"]), asked["keep"], asked["most"])
    draft = None
    try:
        draft = Draft(place, place.draft())
        path = _written(copy, request, draft)
    except (OSError, _Incomplete) as error:
        if draft is not None:
            draft.drop()
        return {"error": str(error)}
    size = sum(p.stat().st_size for p in path.iterdir())
    return {
        "path": str(path),
        "tick": copy.tick,
        "bytes": size,
        "unstored": draft.unstored,
        "seconds": round(time.monotonic() - began, 3),
    }


class _Incomplete(Exception):
    """The state could not be stored; the message says why."""


def _written(copy: Repeatable, request: Mapping[str, Any], draft: Draft) -> Path:
    def state(program: Program) -> str:
        """In the child, when the step begins."""
        try:
            draft.add("state", held(program))
        except OSError as error:
            return str(error)
        return ""

    reply = copy.ask(Plan(begin=state))
    if not (draft.path / "state.json").is_file():
        raise _Incomplete(reply.failed or "the state could not be stored")
    draft.add("batches", _batches(copy, reply))
    asked = request["capture"]
    head = {
        **origin(),
        "tick": copy.tick,
        "kind": copy.kind,
        "rank": asked["rank"],
        "history": asked["history"],
        "losses": [bits for tick, bits in request["losses"] if tick == copy.tick],
        "course": request["course"],
        "passes": copy.micro_batches,
        "unstored": draft.unstored,
        "failed": reply.failed,
    }
    rank = "" if asked["rank"] is None else f"-rank{asked['rank']}"
    return draft.finish(f"{time.strftime('%Y%m%d-%H%M%S')}-tick{copy.tick}{rank}", head)


def _batches(copy: Repeatable, reply: Reply) -> dict[str, Any]:
    """What enters the step. A batch is known by its place among those that are drawn: -1 is the last one before the
    step, 0 the first one in it."""
    places = {key: n - len(reply.held) for n, key in enumerate(reply.held)}
    places |= {key: n for n, (key, _) in enumerate(reply.drawn)}
    keys = [key for _, key in copy.entered.batches] if copy.entered is not None else []
    entries = copy.entered.entries if copy.entered is not None else []
    known = copy.known()
    if not keys and not entries:  # the step raised before a batch was read: the reason may be in any of them
        keys = [key for key, _ in reply.drawn if key in known]
    return {
        "batches": [{"draw": places[key], "batch": known[key]} for key in keys if key in places],
        "entries": []
        if keys
        else [{"index": e.index, "name": e.name, "at": e.at, "values": e.values} for e in entries],
        "rng": [rng for _, rng in reply.drawn],
        "settings": reply.settings,
    }
