"""Errors that end a command with a one-line message.

    PostmortemError
    ├── UsageError      exit 2: an option, a name or a configuration key that does not exist
    ├── NotFoundError   exit 2: no such path, or nothing readable below it
    ├── MissingExtra    exit 2: an optional dependency is not installed; the message names the extra
    ├── ReplayError     exit 2: a step that cannot be rerun
    └── UnreadableCheckpoint  exit 2: saved weights that are damaged, refused or of an unknown format

Damage inside a log never raises: it becomes a `Problem`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.core.model import Problem


class PostmortemError(Exception):
    """Base class of all errors; the message is written for the user."""

    exit_code = 2


class UsageError(PostmortemError):
    """An option, a name or a configuration key does not exist, or does not fit."""


class NotFoundError(PostmortemError):
    """The path does not exist, or no reader recognises anything below it."""


class MissingExtra(PostmortemError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} requires the extra [{extra}]: pip install 'training-postmortem[{extra}]'")
        self._made_from = what, extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """Pickled by its arguments: worker processes raise it as well."""
        return type(self), self._made_from


class ReplayError(PostmortemError):
    """A replay was not possible; the message says why and what to do."""


class UnreadableCheckpoint(PostmortemError):
    """A checkpoint is truncated, corrupt, refused or of an unknown format; `problem` says which, and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.path}: {problem.what}")
        self.problem = problem

    def __reduce__(self) -> tuple[type[UnreadableCheckpoint], tuple[Problem]]:
        """Pickled by its argument: worker processes raise it as well."""
        return type(self), (self.problem,)


def described(error: BaseException) -> str:
    """An unexpected exception in one line: class, message, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error message; empty if nothing is close.

    >>> did_you_mean("cuda-om", ["cuda-oom", "nan-metric"])
    "; did you mean 'cuda-oom'?"
    """
    from difflib import get_close_matches  # costs a fifth of the start-up

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
