"""Detectors: one file each, looking at a `View` and yielding `Finding`s.

The class docstring is the page that ``postmortem explain`` shows. Options are a keyword-only frozen
dataclass named `Options` on the class, with defaults, set in ``[tool.postmortem.detectors.<name>]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding, Severity
    from postmortem.core.view import View


class NotChecked(Exception):
    """Raised by a detector that cannot judge this run; the message says why ("no validation loss found")."""


class Detector(Protocol):
    """What a detector needs: stable `code` and `name`, the highest `severity` it gives, options, `detect`."""

    code: str
    name: str
    severity: Severity
    Options: type[Any]

    def __init__(self, options: Any) -> None: ...

    def detect(self, view: View) -> Iterator[Finding]:
        """Findings in any order, without ids. Raises NotChecked if the run lacks data."""


DETECTORS: Registry[type[Detector]] = Registry("postmortem.detectors", key=lambda d: d.code)
detector = DETECTORS.register
