"""Called by the injected `sitecustomize` once torch is imported: starts the observer that the plan asks for."""

from __future__ import annotations

import json
from pathlib import Path

from postmortem.attach import boundaries
from postmortem.attach.agent import Agent
from postmortem.attach.armed import Armed
from postmortem.attach.growth import measured
from postmortem.attach.layout import runs
from postmortem.attach.layout.look import Look
from postmortem.attach.recall import Recall
from postmortem.attach.report import Report
from postmortem.attach.serving import Serving
from postmortem.silent import observe
from postmortem.silent.faults import FAULTS
from postmortem.silent.trials import CHECKS


def attach(session: str) -> None:
    """Watches this process, as the plan of the session says."""
    folder = Path(session)
    (folder / "attached").touch()
    plan = json.loads((folder / "plan.json").read_text())
    if plan["mode"] == "layout":
        order = runs.begin(folder, plan["layout"])
        if order is not None:
            Look(order, Report(folder).note).install()
        return
    look = plan.get("look")
    if plan["mode"] == "check":
        observe.begin(folder, look, Report(folder).note)
        _try(plan.get("trial"), folder)
        return
    armed, growth = plan.get("armed"), plan.get("growth")
    if growth is not None and growth.get("serve"):
        boundaries.install(Serving(folder, plan))
        return
    if armed is not None:
        boundaries.install(Armed(folder, armed))
    else:
        boundaries.install(Recall(folder, plan) if "recall" in plan else Agent(folder, plan))
    if look is not None:
        observe.begin(folder, look, Report(folder).note)
    if growth is not None:
        measured.begin(folder, growth)


def _try(name: str | None, folder: Path) -> None:
    """Makes the change that would cure a silent fault; `folder` holds a file "used" once it has had an effect."""
    trial = CHECKS.get(name or "") or next((fault.trial for fault in FAULTS if fault.name == name), None)
    if trial is not None:
        trial.start(_Used(folder / "used"))


class _Used:
    def __init__(self, path: Path) -> None:
        self._path, self._told = path, False

    def __call__(self) -> None:
        if not self._told:
            self._path.touch()
        self._told = True
