"""Fixes: one file per change that is tried on the failing step, from the state before it.

Each is a subclass of `BaseFix`, registered by ``@fix``. Plugins register theirs in the entry-point group
``postmortem.fixes``.
"""

from __future__ import annotations

from postmortem.core.registry import Registry
from postmortem.replay.fixes.base import Advice, BaseFix, Case, Change, Scope

__all__ = ["FIXES", "Advice", "BaseFix", "Case", "Change", "Scope", "conclude", "fix", "try_fixes"]

FIXES: Registry[type[BaseFix]] = Registry(
    "postmortem.replay.fixes", key=lambda f: f.name, order=lambda f: f.order, noun="fix", group="postmortem.fixes"
)
fix = FIXES.register


def try_fixes(case: Case) -> None:
    """Tries every fix that applies; `case.found` then holds the outcomes."""
    for each in (kind() for kind in FIXES):
        if case.found.phase in each.phases and each.applies(case):
            case.found = each.attempt(case)


def conclude(case: Case) -> None:
    """Lets every fix revise `case.found` in the light of all outcomes."""
    for kind in FIXES:
        case.found = kind().conclude(case)
