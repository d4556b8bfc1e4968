"""Errors around a replay, in one line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from postmortem.core.errors import ReplayError
from postmortem.replay.recipe.load import as_replay_error, out_of_memory, user_frames
from postmortem.replay.step.runner import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def as_one_line() -> Iterator[None]:
    """Turns exceptions of the user's code, and memory that runs out, into a ReplayError of one line."""
    try:
        yield
    except ReplayError:
        raise
    except BatchError as error:
        raise as_replay_error("the replay", error.__cause__ or error) from error.__cause__
    except Exception as error:
        if not user_frames(error) and out_of_memory("the replay", error) is None:
            raise  # a bug of ours
        raise as_replay_error("the replay", error) from error
