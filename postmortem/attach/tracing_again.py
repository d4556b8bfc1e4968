"""Further runs of a command whose processes cannot be forked: the step is traced and repeated in the process itself."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.standby.known import FILE, MORE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.attach.answers import Process

_RUNS = 12  # at most, where the program ends with a non-finite step, so that each run makes few attempts


def trace_again(
    process: Process,
    answers: Answers,
    plan: dict[str, Any],
    start: Callable[[dict[str, Any], Path], launch.Launched],
) -> None:
    """Runs the command again up to the fault of `process`, as often as the attempts at the step need; the culprit is
    noted with the rank that has it."""
    assert process.fault is not None
    tick = process.fault["tick"]
    armed = {
        "tick": tick,
        "kind": process.fault["what"],
        "losses": [p.loss.hex() for p in process.passes if p.tick == tick],
        "course": process.fault.get("course") or process.course(tick),
        "above": plan.get("jump", {}).get("above"),
        "fixes": plan["fix"],
    }
    found: Process | None = None
    before: launch.Launched | None = None
    for number in range(1, _RUNS + 1):
        session = launch.new_session()
        if before is not None:
            shutil.copy(before.session / FILE, session)
            before.remove()
        second = Answers(session)
        with start({**plan, "armed": {**armed, "last": number == _RUNS}}, session) as launched:
            launched.wait(until=partial(_named, second))
            (session / "done").touch()
            second.poll()
        told = [p for p in second.processes.values() if p.culprit is not None]
        found = next((p for p in told if p.names_culprit), told[0] if told else found)
        before = launched
        if not (session / MORE).exists():
            break
    if before is not None:
        before.remove()
    if found is not None and found.culprit is not None:
        rank = found.culprit.get("rank")
        own = [p for p in answers.trainers if p.rank == rank]
        (own[0] if own else process).culprit = found.culprit


def _named(answers: Answers) -> bool:
    answers.poll()
    return any(p.names_culprit for p in answers.processes.values())
