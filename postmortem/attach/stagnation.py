"""A training that does not learn, run again by its command: which silent fault explains it."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.attach.growth.deaths import looked_at
from postmortem.core.culprit import Culprit
from postmortem.silent.faults.dead_relu import deaths
from postmortem.silent.judge import judge, of_plateau
from postmortem.silent.look import read

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.attach.growth.deaths import Start
    from postmortem.attach.steps import Mapping
    from postmortem.core.blame import Blame
    from postmortem.core.culprit import Phase, ReplayResult
    from postmortem.silent.facts import Place

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
    how = [*result.culprit.how, first.evidence, f"to confirm: {first.confirm}"]
    how += [f"also {fault.name}: {fault.evidence}" for fault in others]
    died = first.measured.get("died")
    since, written = _death(first, mapping, start, how) if died else (None, None)
    file, line = (written.file, written.line) if written is not None else (first.file, first.line)
    culprit = Culprit(
        cause=first.name,
        phase=_PHASES.get(first.family, "optimizer"),
        file=file,
        line=line,
        code=linecache.getline(file, line).strip() or None if file and line else None,
        step=result.culprit.step,
        tensor={"since": since} if since is not None else {},
        fidelity=result.fidelity,
        how=tuple(how),
        established="observed",
    )
    page = f"`postmortem explain {first.name}` says what it is and what to do"
    return replace(result, culprit=culprit, judged=True, next=(page, *result.next))


def _death(fault: Blame, mapping: Mapping | None, start: Start, how: list[str]) -> tuple[int | None, Place | None]:
    """The step of the log from which on the units are dead; a further run looks at each step between two looks. And the
    line that changed the layer outside of optimizer.step(), if one did."""
    (alive, dead), layer = fault.measured["died"], fault.measured["layer"]
    looks = looked_at(start, alive, dead, LOOK["seconds"])
    died = next((each for look in looks for each in deaths(look) if each.layer == layer), None)
    if died is not None:
        alive, dead = died.alive, died.dead
        how += [died.how] if died.how else []
    written = died.written.at if died is not None and died.written is not None else None
    step = mapping.step_of(dead) if mapping is not None else dead
    if step is None or dead > alive + 1:
        how.append(f"the units died between optimizer steps {alive} and {dead} of the command")
        return None, written
    before = "" if written is not None else ", the update before it kills them"
    how.append(f"the units after {layer} are dead from step {step} on{before}")
    return step, written
