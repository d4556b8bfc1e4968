"""Forked children of a test, with a limit of time: one that hangs fails its test, and is not left behind."""

from __future__ import annotations

import os
import select
import signal
import time


def said_by(child: int, pipe: int, seconds: float = 60.0) -> bytes:
    """What a child writes into a pipe up to its end. Raises TimeoutError after so many seconds; it is ended then."""
    parts, deadline = [], time.monotonic() + seconds
    try:
        while True:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the child had not ended after {seconds:g} s")
            part = os.read(pipe, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(pipe)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
