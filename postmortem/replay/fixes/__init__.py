"""Fixes: one file per change that is tried on the failing step, from the state before it.

Each is a subclass of `BaseFix`, registered by ``@fix``. Plugins register theirs in the entry-point group
``postmortem.fixes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from postmortem.core.culprit import Culprit, Fix
from postmortem.core.errors import PostmortemError
from postmortem.core.registry import Registry
from postmortem.replay.fixes.base import Advice, BaseFix, Case, Change, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FIXES",
    "Advice",
    "BaseFix",
    "Case",
    "Change",
    "Scope",
    "conclude",
    "finite",
    "fix",
    "limit_updates",
    "try_fixes",
]

T = TypeVar("T")
FIXES: Registry[type[BaseFix]] = Registry(
    "postmortem.replay.fixes", key=lambda f: f.name, order=lambda f: f.order, noun="fix", group="postmortem.fixes"
)
fix = FIXES.register


def try_fixes(case: Case) -> None:
    """Tries every fix that applies; `case.found` then holds the outcomes.

    A fix that raises is a note in `case.how`, and the next one is tried.
    """

    def attempted(each: BaseFix) -> Culprit:
        return _culprit(each.attempt(case)) if _is_for(each, case) else case.found

    for kind in FIXES:
        case.found = _guarded(kind, "attempt", case, attempted, case.found, "it was not tried")


def conclude(case: Case) -> None:
    """Lets every fix revise `case.found` in the light of all outcomes. Faults as in `try_fixes`."""
    for kind in FIXES:
        case.found = _guarded(
            kind, "conclude", case, lambda each: _culprit(each.conclude(case)), case.found, "it revised nothing"
        )


def finite(cure: Fix) -> str:
    """What a cure is known to do, in words, with the loss that comes of it."""
    return "; ".join(filter(None, ["makes the step finite", cure.loss_after, cure.note]))


def limit_updates(case: Case, survives: Callable[[Change], bool], since: str) -> list[Fix]:
    """The outcomes of the fixes that limit the update, each applied to all steps of a divergence.

    `survives` tells whether the steps, rerun with a change, stay finite and at their level; `since` says from which
    step on, for the report. Faults as in `try_fixes`.
    """

    def tried(each: BaseFix) -> Fix | None:
        if not _is_for(each, case):
            return None
        change, what = each.change(case), each.describe(case)
        if change is None:
            return Fix(name=each.name, cured=False, how=f"{what}: changes nothing in this batch")
        return Fix(name=each.name, cured=survives(change), how=f"{what}, {since}")

    limits = reversed([kind for kind in FIXES if kind.limits_update])
    outcomes = [_guarded(kind, "change", case, tried, None, "it was not tried") for kind in limits]
    return [outcome for outcome in outcomes if outcome is not None]


def _is_for(each: BaseFix, case: Case) -> bool:
    return case.found.phase in each.phases and each.applies(case)


def _guarded(kind: type[BaseFix], method: str, case: Case, ask: Callable[[BaseFix], T], default: T, lost: str) -> T:
    """The answer of a fix; `default` if it raises, with a note in `case.how` that says what is `lost`."""
    try:
        return ask(kind())
    except PostmortemError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault of one fix costs its outcome, not the replay
        note = f"{FIXES.fault(kind, method, error)}; {lost}"
        if note not in case.how:
            case.how.append(note)
        return default


def _culprit(found: object) -> Culprit:
    if not isinstance(found, Culprit):
        raise TypeError(f"returned {type(found).__name__}, not a Culprit")
    return found
