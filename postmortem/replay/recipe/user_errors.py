"""Errors of the user's code, described in one line with the user's own file and line."""

from __future__ import annotations

import contextlib
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.errors import ReplayError
from postmortem.replay.step.errors import BatchError, Exited
from postmortem.replay.trace.user_code import is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def as_one_line() -> Iterator[None]:
    """Turns exceptions of the user's code, and out-of-memory errors, into a ReplayError of one line."""
    try:
        yield
    except ReplayError:
        raise
    except BatchError as error:
        raise as_replay_error("the replay", error.__cause__ or error) from error.__cause__
    except Exception as error:
        if not user_frames(error) and out_of_memory("the replay", error) is None:
            raise  # a bug in postmortem
        raise as_replay_error("the replay", error) from error


def call_user(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Calls the user's code and turns what it raises into a ReplayError; `what` names it in the message."""
    try:
        return function(*args)
    except (ReplayError, KeyboardInterrupt):
        raise
    except BatchError as error:
        raise as_replay_error(what, error.__cause__ or error) from error.__cause__
    except BaseException as error:
        raise as_replay_error(what, error) from error


def as_replay_error(what: str, error: BaseException) -> ReplayError:
    """The ReplayError for an exception of the user's code; `what` names that code in the message."""
    return out_of_memory(what, error) or ReplayError(describe(what, error))


def out_of_memory(what: str, error: BaseException) -> ReplayError | None:
    """The ReplayError for an out-of-memory error; None for any other error."""
    text = _text(error)
    if (
        isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        or "can't allocate memory" in text
        or "not enough memory" in text
    ):
        cpu = ", or --device cpu" if "CUDA" in text else ""
        return ReplayError(
            f"{what} ran out of memory{_where(error)}: build a smaller model or batch in the recipe{cpu}"
        )
    return None


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of `error` in the user's files, outermost first."""
    return [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]


def describe(what: str, error: BaseException) -> str:
    """One line: what failed, the exception, and the innermost line of the user's files."""
    where, message = _where(error), _text(error)
    if "Original Traceback" in message:
        return f"{what} raised {_of_a_worker(message)}"
    text = " ".join(message.split())
    if isinstance(error, Exited):
        return f"{what} was ended by {text}{where}"
    if isinstance(error, SyntaxError):
        text, where = (
            error.msg,
            f" at {Path(error.filename).name}:{error.lineno}" if error.filename and error.lineno else "",
        )
    return f"{what} raised {type(error).__name__}{': ' + text[:300] if text else ''}{where}"


def _of_a_worker(text: str) -> str:
    """The exception of a DataLoader worker and the innermost line of the user's code, from its traceback's text."""
    places = [(f, n) for f, n in re.findall(r'File "([^"]+)", line (\d+)', text) if is_users(f)]
    last = next((line for line in reversed(text.splitlines()) if line.strip() and not line[0].isspace()), "an error")
    return f"{last[:300]} in a DataLoader worker{f' at {Path(places[-1][0]).name}:{places[-1][1]}' if places else ''}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a class of the user's, with a __str__ that raises
        return ""


def _where(error: BaseException) -> str:
    own = user_frames(error)
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}" if own else ""
