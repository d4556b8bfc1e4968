"""A sleeping copy of the process, which repeats the step after a fault.

Just before the suspected tick the process forks. The copy keeps the state of that moment, whatever it consists of: no
model, optimizer, generator or number of the program's has to be known. When something breaks, it is woken, and forks a
child for every question: each goes on with the user's program to the end of the tick at fault, traced, repaired or
otherwise changed, and reports plain data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem._lazy import lazy

if TYPE_CHECKING:
    from postmortem.attach.standby.attempt import Attempt
    from postmortem.attach.standby.standby import Standby

__all__ = ["Attempt", "Standby"]

__getattr__, __dir__ = lazy(
    __name__,
    {"Attempt": "postmortem.attach.standby.attempt", "Standby": "postmortem.attach.standby.standby"},
)
