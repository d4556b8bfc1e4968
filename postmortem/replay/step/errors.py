"""How a step ends early: an observer stops it, or the user's code raises or exits."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.replay.step.result import NonFinite


class StopAt(BaseException):
    """Raised by an observer to end the step. `stage` is where it failed; None if everything of interest is finite.

    A BaseException, so that no `except Exception` around the step takes it for an error of the user's code.
    """

    def __init__(self, stage: NonFinite | None) -> None:
        super().__init__(stage)
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Raised:
    """What a step raised, as plain data: described without its subject, and where, which is equal if a rerun fails
    alike."""

    said: str
    site: Site


Site = tuple[str, str, int]
"""Class, file and line of an exception."""


def error_site(error: BaseException) -> Site:
    """Class, file and line of an exception: equal if a rerun fails as the step did."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}", *(places[-1] if places else ("", 0))


class Exited(Exception):
    """The user's code called ``sys.exit`` (scripts do so to stop at a NaN) or raised another BaseException."""


class BatchError(Exception):
    """The user's code raised while the batch of `step` was drawn; the cause is what it raised."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the batch of step {step} could not be loaded")
        self.step = step


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """Turns a BaseException of the user's code, such as SystemExit, into `Exited`."""
    try:
        yield
    except (Exception, KeyboardInterrupt, StopAt):
        raise
    except BaseException as end:  # noqa: BLE001 - the user's code may raise anything
        message = f"sys.exit({end.code!r})" if isinstance(end, SystemExit) else repr(end)
        raise Exited(message).with_traceback(end.__traceback__) from None
