"""Runs the command in the foreground, for `postmortem run`: signals and terminal belong to the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from postmortem.attach.launch import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import FrameType

# The terminal sends these to the program as well, or they stop us together with it
_LEFT_TO_IT = [getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]
_PASSED_ON = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class Watched:
    """The user's program, running for real."""

    how = "the command runs for real: nothing is protected"

    def __init__(self, process: subprocess.Popen[bytes], session: Path, signals: _Signals) -> None:
        self._process = process
        self._signals = signals
        self.session = session

    @property
    def returncode(self) -> int | None:
        """As of subprocess: the exit code, -n where signal n ended it, None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Until the program ends. Ctrl-C is its own matter; signals sent to us are passed on."""
        try:
            return self._process.wait()
        finally:
            self._signals.restore()


class _Signals:
    """What happens to our signals, from before the program starts: no moment in which one of them ends only us.

    By handlers, as a program inherits that a signal is ignored. What is ignored already stays so.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
                # inherited from who started us: the kernel would then forget exit codes
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for numbers, handler in ((_LEFT_TO_IT, lambda *_: None), (_PASSED_ON, self._pass_on)):
                for number in numbers:
                    if signal.getsignal(number) != signal.SIG_IGN:
                        self._before[number] = signal.signal(number, handler)

    def of(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def watch(
    command: Sequence[str],
    plan: Mapping[str, Any],
    *,
    session: Path,
    cwd: Path | None = None,
    stdout: int | None = None,
) -> Watched:
    """Start ``command`` in the foreground, under watch. Raises OSError where it cannot be started."""
    (session / "plan.json").write_text(json.dumps(plan))
    signals = _Signals()
    try:
        process = subprocess.Popen(
            list(command), cwd=cwd, env=environment.watched(os.environ, session), stdout=stdout, close_fds=False
        )
    except BaseException:
        signals.restore()
        raise
    signals.of(process)
    return Watched(process, session, signals)
