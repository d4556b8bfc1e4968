"""Diagnoses: one file per root cause, joining findings, events, config and schedule into one story.

Each is a class with the members of `Cause`, registered by ``@diagnosis``. `judging.causes` asks all of them, takes
the strongest answer as the story of the run and orders the other findings under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


class Cause(Protocol):
    """One root cause. The class docstring is its page in ``postmortem explain``."""

    name: str
    priority: int
    """Where several causes fit, the lowest number tells the story."""

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        """The story, if this cause fits what was found; `findings` have ids. None where it does not fit."""


CAUSES: Registry[type[Cause]] = Registry("postmortem.diagnoses", key=lambda c: c.name, order=lambda c: c.priority)
diagnosis = CAUSES.register
