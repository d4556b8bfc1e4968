"""Diagnoses: one file per root cause; each combines findings, events, configuration and schedule.

Each is a class with the members of `Cause`, registered by ``@diagnosis``. `judging.causes` asks all of them, takes
the first answer as the diagnosis of the run and orders the other findings under its root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


class Cause(Protocol):
    """One root cause. The class docstring is its page in ``postmortem explain``, also under the names in `also`, a
    tuple of further names that its stories have (optional)."""

    name: str
    priority: int
    """If several causes fit, the one with the lowest number is the diagnosis."""

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        """The diagnosis if this cause fits the findings, else None. `findings` have ids."""


CAUSES: Registry[type[Cause]] = Registry("postmortem.diagnoses", key=lambda c: c.name, order=lambda c: c.priority)
diagnosis = CAUSES.register
