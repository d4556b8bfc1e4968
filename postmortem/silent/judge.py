"""Asks every fault about what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.blame import Blame, Check
from postmortem.silent.faults import FAULTS, NotChecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.silent.look import Look


def judge(looks: Sequence[Look]) -> tuple[list[Blame], list[Check]]:
    """The faults, each line of code once per fault, and the checklist: one line per fault that is known."""
    trained = [look for look in looks if look.steps]
    found: dict[str, list[Blame]] = {}
    checks: dict[str, Check] = {}
    for kind in FAULTS:
        try:
            found[kind.name] = _once(kind().across(trained)) if trained else []
            why = "" if trained else "no step of an optimizer was seen"
        except NotChecked as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - one that fails must not hide what the others find
            why = FAULTS.fault(kind, "blames", error)
        checks[kind.name] = Check(kind.name, "not checked" if why else "ok", why or kind.checks)
    blames = []
    for kind in FAULTS:
        explained = next((other for other in kind.because_of if found.get(other)), None)
        if found.get(kind.name) and explained is None:
            blames += found[kind.name]
            checks[kind.name] = Check(kind.name, "not ok", found[kind.name][0].evidence)
        elif found.get(kind.name):
            checks[kind.name] = Check(kind.name, "not checked", f"explained by {explained}")
    return blames, list(checks.values())


def _once(blames: object) -> list[Blame]:
    """Ranks and repeated calls blame the same line."""
    unique: dict[tuple[str, str | None, int | None], Blame] = {}
    for blame in blames:  # type: ignore[attr-defined]
        unique.setdefault((blame.name, blame.file, blame.line), blame)
    return list(unique.values())
