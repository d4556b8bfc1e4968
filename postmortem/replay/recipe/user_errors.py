"""What goes wrong around a replay, said in one line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from postmortem.replay.recipe.load import describe, out_of_memory, user_frames
from postmortem.replay.step.runner import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def as_one_line() -> Iterator[None]:
    """What the user's code raises, or memory that runs out, as a ReplayError of one line."""
    try:
        yield
    except ReplayError:
        raise
    except Exception as error:
        if (said := one_line("the replay", error)) is None:
            raise
        raise said from error


def one_line(what: str, error: Exception) -> ReplayError | None:
    """The ReplayError for what the user's code raised or for memory that ran out; None where it is a fault of ours."""
    return out_of_memory(what, error) or (ReplayError(describe(what, error)) if user_frames(error) else None)
