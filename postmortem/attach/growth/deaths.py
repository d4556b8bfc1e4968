"""Units that die at a step: the run is made again, and each step around that one is looked at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.silent.faults.dead_relu import Death, deaths
from postmortem.silent.look import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.attach.growth.course import Course, Seen
    from postmortem.silent.look import Look

    Start = Callable[[dict[str, Any], Path], launch.Launched]

_EARLIER = 25  # steps before a growth in which units may have died
AROUND = 3  # steps before the one at which they die
AFTER = 8  # steps after it in which they have to stay dead


def observed(session: Path) -> bool:
    """Enough was observed in every process that trains."""
    folder = session / "silent"
    looks = {path.stem for path in folder.glob("*.jsonl")} if folder.is_dir() else set()
    return bool(looks) and all((folder / f"{stem}.over").exists() for stem in looks)


def looked_at(start: Start, first: int, last: int, seconds: float) -> list[Look]:
    """What a further run of the command shows, each optimizer step from `first` to `last` looked at closely."""
    look = {"steps": last + 1, "seconds": seconds, "closely": [first, last]}
    session = launch.new_session()
    with start({"mode": "check", "look": look}, session) as launched:
        launched.wait(until=lambda: observed(session), timeout=2 * seconds)
        (session / "done").touch()
        launched.stop()
        found = read(session / "silent")
        launched.remove()
    return found


def gone_silent(base: Seen, course: Course) -> int | None:
    """The step from which on a module gives or gets nothing but zeros, which it did not before, at the latest the first
    of the growth."""
    for step in range(max(min(base.losses), course.first - _EARLIER), course.first + 1):
        for gains in base.gains.values():
            before, from_now = gains.get(step - 1, math.nan), [v for s, v in gains.items() if s >= step]
            if before > 0 and from_now and all(not v > 0 for v in from_now):
                return step
    return None


def death_in(looks: list[Look], tick: int) -> Death | None:
    """The hidden layer whose units all died, at this optimizer step at the latest."""
    return next((each for look in looks for each in deaths(look) if each.whole and each.dead <= tick), None)
