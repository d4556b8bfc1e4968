"""A training that does not learn, run again by its command: which silent fault explains it."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.attach import launch
from postmortem.core.culprit import Culprit
from postmortem.silent.faults.dead_relu import death
from postmortem.silent.judge import judge, of_plateau
from postmortem.silent.look import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.attach.steps import Mapping
    from postmortem.core.blame import Blame
    from postmortem.core.culprit import Phase, ReplayResult

    Start = Callable[[dict[str, Any], Path], launch.Launched]

LOOK: dict[str, Any] = {"steps": 1000, "seconds": 60.0}
"""What is observed of the rerun, as by `check`."""
_PHASES: dict[str, Phase] = {
    "data": "data",
    "evaluation": "data",
    "gradient-flow": "backward",
    "loss-output": "forward",
    "sequence": "forward",
    "train-eval-mode": "forward",
    "weights": "parameters",
    "initialisation": "parameters",
}
"""Of the families of silent faults; of all others it is the optimizer's."""


def over(session: Path) -> bool:
    """Enough was observed in every process that trains."""
    folder = session / "silent"
    looks = {path.stem for path in folder.glob("*.jsonl")} if folder.is_dir() else set()
    return bool(looks) and all((folder / f"{stem}.over").exists() for stem in looks)


def explained(result: ReplayResult, session: Path, mapping: Mapping | None, start: Start) -> ReplayResult:
    """The result, with the first silent fault that was observed as the culprit; as it is where something is named, or
    where the rerun did not follow the log. start: starts the command again, to see at which step units died."""
    if result.culprit.phase != "none" or not result.fidelity.ok:
        return result
    looks = read(session / "silent")
    faults, checks = judge(looks)
    faults = faults or of_plateau(looks)
    if not faults:
        judged = sum(check.status == "ok" for check in checks)
        said = f"of {len(checks)} silent faults none was found ({judged} could be checked)"
        return replace(result, culprit=replace(result.culprit, how=(*result.culprit.how, said)))
    first, *others = faults
    code = linecache.getline(first.file, first.line).strip() if first.file and first.line else None
    how = [*result.culprit.how, first.evidence, f"to confirm: {first.confirm}"]
    how += [f"also {fault.name}: {fault.evidence}" for fault in others]
    since = _death(first, mapping, start, how) if first.measured.get("died") else None
    culprit = Culprit(
        cause=first.name,
        phase=_PHASES.get(first.family, "optimizer"),
        file=first.file,
        line=first.line,
        code=code or None,
        step=result.culprit.step,
        tensor={"since": since} if since is not None else {},
        fidelity=result.fidelity,
        how=tuple(how),
        established="observed",
    )
    page = f"`postmortem explain {first.name}` says what it is and what to do"
    return replace(result, culprit=culprit, judged=True, next=(page, *result.next))


def _death(fault: Blame, mapping: Mapping | None, start: Start, how: list[str]) -> int | None:
    """The step of the log from which on the units are dead; a further run looks at each step between two looks."""
    alive, dead = fault.measured["died"]
    if dead > alive + 1:
        look = {**LOOK, "steps": dead + 1, "closely": [alive, dead]}
        session = launch.new_session()
        with start({"mode": "check", "look": look}, session) as launched:
            launched.wait(until=lambda: over(session), timeout=LOOK["seconds"] * 2)
            (session / "done").touch()
            launched.stop()
            found = [death(each, fault.measured["layer"]) for each in read(session / "silent")]
            launched.remove()
        alive, dead = next((pair for pair in found if pair is not None), (alive, dead))
    step = mapping.step_of(dead) if mapping is not None else dead
    if step is None or dead > alive + 1:
        how.append(f"the units died between optimizer steps {alive} and {dead} of the command")
        return None
    how.append(
        f"the units after {fault.measured['layer']} are dead from step {step} on, the update before it kills them"
    )
    return step
