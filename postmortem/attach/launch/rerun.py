"""Reruns the command in a sandbox; it ends when the launcher ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from postmortem.attach.launch import environment
from postmortem.attach.sandbox import overlay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

_LOOK = 0.05  # seconds between two looks at what `wait` waits for
_LAST = 10.0  # seconds the supervisor has to end everything
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from postmortem.attach.launch.supervisor import main; "
_BOOT += "main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"


OUTPUT = "output"
"""A file of the session: what the command writes to stdout, where whoever starts it says so."""


class CannotProtect(RuntimeError):
    """The user's files cannot be protected on this machine; the message is one line and says how to go on without."""


class Launched:
    """A rerun. Everything it started ends at `stop`, at the end of a `with` block, and with this process.

    What it wrote stays until `remove`, or until an exception leaves the `with` block.
    """

    def __init__(self, process: subprocess.Popen[bytes], session: Path, lifeline: int, status: int) -> None:
        self.session = session
        self.how = ""
        self.failed: str | None = None  # why the command could not be started
        self.denies = False  # whether writing gives the program an error, instead of going to the shadow
        self.shadow: Path | None = None
        self._process = process
        self._lifeline: int | None = lifeline
        self._status: int | None = status
        self._rest = b""
        self._code: int | None = None
        self._layers: Path | None = None
        self._folder = Path.cwd()

    @property
    def returncode(self) -> int | None:
        """As of subprocess: of the command itself, None while it runs or where it was stopped."""
        return self._code

    @property
    def ended(self) -> bool:
        """Whether the command is over."""
        return self._status is None

    def shadow_of(self, path: Path) -> Path | None:
        """Where the writes below ``path`` went: a folder or file that need not be there; None without an overlay."""
        return self.shadow / path.resolve().relative_to("/") if self.shadow else None

    def logs_of(self, path: Path) -> list[Path]:
        """Where a program that logs below ``path``, below its working directory or to its output has logged to, and
        may have written nothing."""
        shadows = [self.shadow_of(path), self.shadow_of(self._folder)]
        return [*dict.fromkeys(shadow for shadow in shadows if shadow is not None), self.session / OUTPUT]

    def wait(self, until: Callable[[], bool] | Path | None = None, timeout: float | None = None) -> bool:
        """Until ``until`` is true (a path: is there) or the command itself has ended; False at the timeout.

        What the command left behind, and who holds its output open, is not waited for.
        """
        come = until.exists if isinstance(until, Path) else until
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if (come is not None and come()) or self.ended:
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            looks = [_LOOK] if come is not None else []
            self._listen(min([*looks, *([left] if left is not None else [])], default=None))

    def _listen(self, timeout: float | None) -> None:
        if self._status is None or not select.select([self._status], [], [], timeout)[0]:
            return
        got = os.read(self._status, 65536)
        if not got:
            os.close(self._status)
            self._status = None
            return
        *lines, self._rest = (self._rest + got).split(b"\n")
        for line in lines:
            self._heard(json.loads(line))

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "refused" in message:
            raise CannotProtect(
                f"your files cannot be protected here: {message['refused']}. `--sandbox none` runs the command without"
            )
        self.how = message.get("how") or self.how
        self.failed = message.get("failed", self.failed)
        self.denies = message.get("denies", self.denies)
        self._code = message.get("exit", self._code)
        if message.get("layers"):
            self._layers = Path(message["layers"])
            self.shadow = self._layers / "upper"

    def stop(self) -> None:
        """End the command and all that it started, at once. The files stay until `remove`."""
        if self._lifeline is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                os.write(self._lifeline, b"k")
            os.close(self._lifeline)
            self._lifeline = None
        try:
            self._process.wait(_LAST)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._status is not None:
            os.close(self._status)
            self._status = None

    def keep(self) -> None:
        """Leave the files of the session where they are."""
        (self.session / "keep").touch()

    def remove(self) -> None:
        """Delete the session with all that the rerun wrote."""
        self.stop()
        for folder in (self._layers, self.session):
            if folder is not None:
                overlay.remove(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None and not (self.session / "keep").exists():
            self.remove()


def start(
    command: Sequence[str],
    plan: Mapping[str, Any],
    *,
    session: Path,
    protect: Sequence[Path] = (),
    cwd: Path | None = None,
    offline: bool = True,
    sandbox: str = "auto",
    stdout: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.STDOUT,
) -> Launched:
    """Start ``command`` in ``cwd``, shut in; returns when it is protected and starts.

    ``protect`` are the folders that must not change besides ``cwd`` (the run); all other files are protected as well as
    it goes. ``sandbox``: "overlay" redirects writes, "landlock" denies them, "auto" takes the first that works, "none".
    Raises `CannotProtect` where it does not work; `Launched.failed` says why a command could not be started.
    """
    if not sys.platform.startswith("linux"):
        raise CannotProtect("only on Linux can a command be rerun without a change of your files")
    folder = Path.cwd() if cwd is None else Path(cwd).resolve()
    (session / "plan.json").write_text(json.dumps(plan))
    (session / "tmp").mkdir(exist_ok=True)
    stand_ins = environment.stubs(session, os.environ)
    order = {
        "command": list(command),
        "cwd": str(folder),
        "session": str(session),
        "protect": [str(path.resolve()) for path in (folder, *protect)],
        "offline": offline,
        "sandbox": sandbox,
        "layers": _layers(session),
        "stubs": [[str(stub), str(program)] for stub, program in stand_ins],
        "environment": environment.rerun(os.environ, session, offline),
    }
    launched = _supervised(session, stdout, stderr, json.dumps(order).encode())
    launched._folder = folder
    try:
        launched.wait(lambda: bool(launched.how or launched.failed))
    except BaseException:
        launched.remove()
        raise
    if not launched.how:
        launched.remove()
        raise CannotProtect(
            "the process that protects your files ended unexpectedly. `--sandbox none` runs the command without"
        )
    return launched


def _supervised(session: Path, stdout: int | None, stderr: int | None, order: bytes) -> Launched:
    hear, tell = os.pipe2(os.O_CLOEXEC)
    alive, lifeline = os.pipe2(os.O_CLOEXEC)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, str(environment.ROOT), str(session), str(alive), str(tell)],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        cwd="/",
        pass_fds=(alive, tell),
        start_new_session=True,
    )
    os.close(alive)
    os.close(tell)
    launched = Launched(process, session, lifeline, hear)
    assert process.stdin is not None
    try:
        # It may have ended already: seen by the one who waits.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(order)
    except BaseException:
        launched.remove()
        raise
    return launched


def _layers(session: Path) -> list[str]:
    """Where the layers may lie: in the session; a home on NFS cannot hold them, then on the machine's own disk."""
    name = f"postmortem-{session.name}"
    elsewhere = [parent for parent in ("/var/tmp", tempfile.gettempdir(), "/dev/shm") if os.access(parent, os.W_OK)]
    return [str(session / "layers"), *(os.path.join(parent, name) for parent in dict.fromkeys(elsewhere))]
