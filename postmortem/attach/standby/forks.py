"""Forks a process with running threads: libraries whose threads do not survive, messages through pipes, timeouts.

A forked child has only the thread that forked. The pool of OpenMP threads is therefore ended before (a child that asks
it for work waits forever), and what other threads were to take from a queue is not waited for.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import pickle
import queue
import random
import select
import signal
import struct
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

import torch

from postmortem.attach.boundaries.current import listener

_HEAD = struct.Struct("=Q")
_PR_SET_PDEATHSIG = 1
_PAUSE_HARD = 2


def fork() -> int:
    """`os.fork` of a process that may have computed with many threads; they compute in the child as in the parent.

    The child is killed with its parent. Its `random` goes on as in the parent: Python would seed it anew.
    """
    drawn = random.getstate()
    paused = _pause_threads()
    parent = os.getpid()
    loop = sys.modules["asyncio"]._get_running_loop() if "asyncio" in sys.modules else None
    # A signal to the whole group (Ctrl-C, the end of a job) must run no handler of the program twice.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the process has threads
            with listener.copy():
                child = os.fork()
        if child == 0:
            _forget_handlers()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if child == 0:
        random.setstate(drawn)
        _stay_in(loop)
        _die_with(parent)
        if not paused:
            torch.set_num_threads(1)
    return child


def _pause_threads() -> bool:
    """Ends the pools of OpenMP threads; they are made again when they are needed. False where that cannot be done."""
    if torch.get_num_threads() == 1:
        return True
    known = [pause for pause in map(_pause_of, _openmp_libraries()) if pause is not None]
    return bool(known) and all(pause(_PAUSE_HARD) == 0 for pause in known)


def _openmp_libraries() -> list[str]:
    found: dict[str, None] = {}
    with suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if "libgomp" in os.path.basename(path):
                found["/" + path] = None
    return list(found)


@functools.cache
def _pause_of(library: str) -> Any:
    """The function of GNU's OpenMP that ends its threads; None in versions before 5.0."""
    try:
        return ctypes.CDLL(library).omp_pause_resource_all
    except (OSError, AttributeError):
        return None


def _forget_handlers() -> None:
    """Signals have their default effect: the end. What is ignored stays so, as Python relies on it for SIGPIPE."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)) or number == signal.SIGCHLD:  # torch's, in C, is not told
            signal.signal(number, signal.SIG_DFL)


def _stay_in(loop: Any) -> None:
    """The event loop that the program runs in: asyncio takes it for that of the parent only."""
    if loop is not None:
        sys.modules["asyncio"]._set_running_loop(loop)


def _die_with(parent: int) -> None:
    with suppress(OSError, AttributeError):  # another system than Linux: the pipes end
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def settle_down() -> None:
    """For a forked copy: nothing waits for threads that were not copied."""
    putting, ours = queue.Queue.put, threading.get_ident()

    def put(self: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if threading.get_ident() != ours:  # started since: it would fill the queue without a pause
            putting(self, item, block, timeout)
            return
        with suppress(queue.Full):  # whoever took from it is gone
            putting(self, item, block=False)

    queue.Queue.put = put  # type: ignore[method-assign]
    queue.Queue.join = lambda self: None  # type: ignore[method-assign]
    for found in [o for o in gc.get_objects() if issubclass(type(o), queue.Queue)]:
        if found.mutex.locked():  # by a thread that is gone
            found.mutex = threading.Lock()
            found.not_empty = threading.Condition(found.mutex)
            found.not_full = threading.Condition(found.mutex)
            found.all_tasks_done = threading.Condition(found.mutex)


def send(fd: int, value: Any, seconds: float | None = None) -> None:
    """Writes a pickled value as one message. Raises TimeoutError where nothing of it is taken for so long."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    view = memoryview(_HEAD.pack(len(data)) + data)
    os.set_blocking(fd, seconds is None)
    while view:
        if seconds is not None and not select.select([], [fd], [], seconds)[1]:
            raise TimeoutError
        view = view[os.write(fd, view) :]


def heard(fd: int, seconds: float) -> bool:
    """Whether the other side wrote something, or has ended, within so many seconds."""
    return bool(select.select([fd], [], [], seconds)[0])


def receive(fd: int, seconds: float | None = None) -> Any:
    """The next message. Raises EOFError where the other side ended without one, TimeoutError after `seconds`."""
    end = None if seconds is None else time.monotonic() + seconds
    (size,) = _HEAD.unpack(_read(fd, _HEAD.size, end))
    return pickle.loads(_read(fd, size, end))


def _read(fd: int, size: int, end: float | None) -> bytes:
    parts = []
    while size:
        if end is not None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def end(process: int, seconds: float = 10.0) -> None:
    """Kills a child and takes its status; one that the kernel does not let go is left to it."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    deadline, pause = time.monotonic() + seconds, 0.0005
    with suppress(ChildProcessError):  # the program waits for its children itself
        while os.waitpid(process, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
