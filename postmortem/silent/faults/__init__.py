"""Silent faults: one file each, judging what was observed.

The class docstring is the page that ``postmortem explain`` shows. Plugins register theirs in the entry-point group
``postmortem.checks``.
"""

from __future__ import annotations

from postmortem.core.registry import Registry
from postmortem.silent.faults.base import BaseFault, NoneSeen, NotChecked

__all__ = ["FAULTS", "BaseFault", "NoneSeen", "NotChecked", "fault"]

FAULTS: Registry[type[BaseFault]] = Registry(
    "postmortem.silent.faults", key=lambda f: f.name, noun="silent fault", group="postmortem.checks"
)
fault = FAULTS.register
