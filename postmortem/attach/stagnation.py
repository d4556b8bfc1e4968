"""A training that does not learn, run again by its command: which silent fault explains it."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.culprit import Culprit
from postmortem.silent.judge import judge
from postmortem.silent.look import read

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.culprit import Phase, ReplayResult

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


def explained(result: ReplayResult, session: Path) -> ReplayResult:
    """The result, with the first silent fault that was observed as the culprit; as it is where something is named, or
    where the rerun did not follow the log."""
    if result.culprit.phase != "none" or not result.fidelity.ok:
        return result
    faults, checks = judge(read(session / "silent"))
    if not faults:
        judged = sum(check.status == "ok" for check in checks)
        said = f"of {len(checks)} silent faults none was found ({judged} could be checked)"
        return replace(result, culprit=replace(result.culprit, how=(*result.culprit.how, said)))
    first, *others = faults
    code = linecache.getline(first.file, first.line).strip() if first.file and first.line else None
    how = [*result.culprit.how, first.evidence, f"to confirm: {first.confirm}"]
    how += [f"also {fault.name}: {fault.evidence}" for fault in others]
    culprit = Culprit(
        cause=first.name,
        phase=_PHASES.get(first.family, "optimizer"),
        file=first.file,
        line=first.line,
        code=code or None,
        step=result.culprit.step,
        fidelity=result.fidelity,
        how=tuple(how),
        established="observed",
    )
    page = f"`postmortem explain {first.name}` says what it is and what to do"
    return replace(result, culprit=culprit, judged=True, next=(page, *result.next))
