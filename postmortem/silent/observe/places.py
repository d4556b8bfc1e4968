"""The current line of the user's code."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from postmortem.replay.trace.user_code import owner_of
from postmortem.silent.facts import Place, Stack

if TYPE_CHECKING:
    from types import FrameType

_MOST = 8
_owned: dict[str, bool] = {}


def stack(most: int = _MOST) -> Stack:
    """The user's frames, the innermost first."""
    found: list[Place] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < most:
        code = frame.f_code
        if _is_users(code.co_filename):
            found.append(Place(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return tuple(found)


def place() -> Place | None:
    """The innermost line of the user's."""
    found = stack(1)
    return found[0] if found else None


def code_of(function: Any) -> Place | None:
    """Where a function of the user's begins, with its decorators; None for other code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return None
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)


def _is_users(file: str) -> bool:
    known = _owned.get(file)
    if known is None:
        known = _owned[file] = owner_of(file) == "user"
    return known
