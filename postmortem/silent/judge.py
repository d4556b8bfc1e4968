"""Checks every fault against the recorded facts."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from postmortem.core.blame import Blame, Check, NonfiniteLoss
from postmortem.silent.facts import Backward
from postmortem.silent.faults import FAULTS, NoneSeen, NotChecked
from postmortem.silent.faults._losses import against_constant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.silent.faults import BaseFault
    from postmortem.silent.look import Look


def judge(looks: Sequence[Look]) -> tuple[list[Blame], list[Check]]:
    """The faults, each line of code once per fault, and the checklist: one line per fault that is known."""
    trained = [look for look in looks if look.steps]
    found: dict[str, list[Blame]] = {}
    checks: dict[str, Check] = {}
    for kind in FAULTS:
        seen, absent = "", False
        try:
            found[kind.name] = _once(kind().across(trained)) if trained else []
            why = "" if trained else "no step of an optimizer was seen"
            seen = _seen(kind(), trained) if trained and not found[kind.name] else ""
        except NotChecked as error:
            why, absent = str(error), isinstance(error, NoneSeen)
        except Exception as error:  # noqa: BLE001 - one that fails must not hide what the others find
            why = FAULTS.fault(kind, "blames", error)
        based = f"{kind.checks} ({seen})" if seen else kind.checks
        checks[kind.name] = Check(kind.name, "not checked" if why else "ok", why or based, absent=absent)
    blames = []
    for kind in FAULTS:
        explained = next((other for other in kind.because_of if found.get(other)), None)
        if found.get(kind.name) and explained is None:
            blames += found[kind.name]
            checks[kind.name] = Check(kind.name, "not ok", found[kind.name][0].evidence)
        elif found.get(kind.name):
            checks[kind.name] = Check(kind.name, "not checked", f"explained by {explained}")
    return blames, list(checks.values())


def _seen(fault: BaseFault, looks: Sequence[Look]) -> str:
    """In the first process that has something of the kind."""
    for look in looks[:-1]:
        with suppress(NotChecked):
            return fault.seen(look)
    return fault.seen(looks[-1])


def of_plateau(looks: Sequence[Look]) -> list[Blame]:
    """What explains that a loss does not fall, where `judge` finds nothing."""
    found: list[Blame] = []
    for kind in FAULTS:
        try:
            found += _once([blame for look in looks if look.steps for blame in kind().of_plateau(look)])
        except Exception as error:  # noqa: BLE001 - as in `judge`
            FAULTS.fault(kind, "of_plateau", error)
    return found


def learns_nothing(looks: Sequence[Look]) -> str | None:
    """What is to be said of a loss that does not fall below that of a constant prediction; None if one does, or if no
    plain loss was seen often enough."""
    compared = [found for look in looks if look.steps and (found := against_constant(look)) is not None]
    if not compared or any(not found.as_constant for found in compared):
        return None
    first = compared[0]
    return (
        f"the loss stays at {first.early:.3g}; the best constant prediction, which ignores the inputs, has "
        f"{first.alone:.3g}: so far the model has learnt nothing from its inputs, for a reason that was not found"
    )


def nonfinite_loss(looks: Sequence[Look]) -> NonfiniteLoss | None:
    """The first loss that was not finite; None if all were.

    Infinities from which the loss came back do not count: a loss scaler makes some, and skips their steps.
    """
    first: NonfiniteLoss | None = None
    for look in looks:
        passes = [(p, p.loss) for p in look.of(Backward) if p.loss is not None]
        bad = [(p, loss) for p, loss in passes if not math.isfinite(loss)]
        came_back = bool(passes) and math.isfinite(passes[-1][1])
        if not bad or (came_back and not any(math.isnan(loss) for _, loss in bad)):
            continue
        begun, value = bad[0]
        if first is None or begun.step < first.step:
            place = begun.at
            nan = sum(math.isnan(loss) for _, loss in bad)
            file, line = (place.file, place.line) if place is not None else (None, None)
            first = NonfiniteLoss(begun.step, value, len(bad), len(passes), file, line, nan)
    return first


def _once(blames: object) -> list[Blame]:
    """Ranks and repeated calls blame the same line."""
    unique: dict[tuple[str, str | None, int | None], Blame] = {}
    for blame in blames:  # type: ignore[attr-defined]
        unique.setdefault((blame.name, blame.file, blame.line), blame)
    return list(unique.values())
