"""What a process of the user's program tells the launcher."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.measure.owned import Owned
from postmortem.core.culprit import Culprit
from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    from pathlib import Path

_OF_A_STEP = ("torch/nn/modules/module.py", "torch/utils/data/dataloader.py", "torch/autograd/__init__.py")
"""Files of torch that a step goes through, and the preparations of a training do not."""


class Report:
    """What this process tells the launcher; the file is there once there is something to tell."""

    def __init__(self, session: Path) -> None:
        self._session, self._folder, self._notes = session, session / "processes", session / "notes"
        self._file: Owned | None = None

    def note(self, text: str) -> None:
        """What hinders us, in one line."""
        self._notes.mkdir(exist_ok=True)
        with (self._notes / str(os.getpid())).open("a") as file:
            file.write(" ".join(text.split()) + "\n")

    def stopped(self) -> None:
        """The training is over, also where a launcher would start it again."""
        (self._session / "stopped").touch()

    def line(self, kind: str, **fields: Any) -> None:
        """Appends one object."""
        new = self._file is None
        fd = self._file.fd if self._file is not None else None
        if fd is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(self._folder / f"{os.getpid()}.jsonl", flags, 0o600)
            self._file = Owned(fd)
        if new:
            self.line("start", pid=os.getpid(), rank=rank(), argv=sys.argv, started=time.time())
        os.write(fd, (json.dumps({"kind": kind, **fields}) + "\n").encode())


def tell(report: Report, answer: dict[str, Any]) -> None:
    """Tells the launcher what an investigation found, with what to do about it."""
    from postmortem.replay.advice import advised  # not at the top: most programs do not fail

    culprit = Culprit.from_json(answer["culprit"])
    told = {**answer, "next": advised(culprit, None) if culprit.phase != "none" else []}
    report.line("culprit", rank=rank(), **told)


def rank() -> int | None:
    """The rank of this process in a distributed training; None where it is alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() if torch.distributed.get_world_size() > 1 else None
    size, number = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "")
    return int(number) if number.isdigit() and size != "1" else None


def ranks() -> int:
    """How many processes train together."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if together else 1


def described(error: BaseException) -> dict[str, Any]:
    """Type, message, file and line of an exception: the innermost frame of the user's own files. in_step: it came out
    of a module, a loader or a derivative, and not of the program's preparations."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if owner_of(f.filename) == "user"] or list(frames)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a class of the user's, with a __str__ that raises
        message = ""
    place = own[-1] if own else None
    return {
        "type": type(error).__name__,
        "message": " ".join(message.split())[:500],
        "file": place.filename if place else None,
        "line": place.lineno if place else None,
        "in_step": any(f.filename.replace(os.sep, "/").endswith(_OF_A_STEP) for f in frames),
        **_first_of_ranks(error),
    }


def _first_of_ranks(error: BaseException) -> dict[str, Any]:
    """Of a launcher (torchrun) that reports its ranks: the one that failed first, and its exit code."""
    first = getattr(error, "get_first_failure", None)
    if first is None:
        return {}
    rank, failure = first()
    return {"first_rank": rank, "first_code": failure.exitcode}
