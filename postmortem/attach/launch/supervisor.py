"""The process between the launcher and the user's command: no process of the command outlives the launcher.

The launcher holds one end of a pipe, the lifeline. When it closes, also because the launcher was killed, everything is
ended here. Run as a program of its own, not forked: the launcher may have threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from postmortem.attach.sandbox import _calls, overlay, stages

_LOOK = 1.0  # seconds between two looks at the disk
_AGAIN = 0.005  # seconds between two rounds of killing
_SPARE = 2 << 30  # bytes that stay free on it
_WAITED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(session: str, lifeline: int, status: int) -> None:
    """Run the command that stdin describes as JSON; tell on ``status`` how it is protected and how it ends."""
    os.chdir("/")  # nobody's folder is kept busy
    for number in _WAITED:
        signal.signal(number, signal.SIG_IGN)
    _calls.become_subreaper()
    try:
        # not by a file: the environment may hold keys
        order = json.load(sys.stdin)
    except ValueError:  # the launcher was killed while it wrote
        overlay.remove(Path(session))
        return
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    supervisor = _Supervisor(order, lifeline, status)
    with contextlib.suppress(_Cut):
        supervisor.run()
    supervisor.finish()


class _Cut(Exception):
    """The lifeline was cut, or SIGTERM came."""


class _Supervisor:
    def __init__(self, order: dict[str, Any], lifeline: int, status: int) -> None:
        self.order = order
        self.lifeline = lifeline
        self.status = status
        self.layers: list[str] = []
        self._least: dict[str, int] = {}  # folder: bytes that have to stay free
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, _cut)

    def tell(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(self.status, (json.dumps(message) + "\n").encode())

    def run(self) -> None:
        refused: list[str] = []
        for way in stages.ways(self.order["sandbox"]):
            for layers in self.order["layers"] if way.files == "overlay" else [""]:
                if layers and not self._room(layers, refused):
                    continue
                if self._attempt(way, layers, refused):
                    return
                if layers:
                    overlay.remove(Path(layers))
        self.tell(refused="; ".join(dict.fromkeys(refused)))

    def _room(self, layers: str, refused: list[str]) -> bool:
        try:
            Path(layers).mkdir(mode=0o700)
        except OSError as error:
            refused.append(f"no folder {layers} ({error.strerror})")
            return False
        self.layers.append(layers)
        return True

    def _attempt(self, way: stages.Way, layers: str, refused: list[str]) -> bool:
        """Start the command in this way and wait for its end; False where the way is not open."""
        listen, answer = os.pipe2(os.O_CLOEXEC)
        own = os.getpid()
        pid = os.fork()
        if not pid:
            _begin(self.order, way, layers, answer, own, (listen, self.lifeline, self.status, self._wake))
        os.close(answer)
        ended: dict[str, Any] = {}
        started = False
        for message in self._messages(listen):
            if "refused" in message:
                refused.append(message["refused"])
            elif "exit" in message:
                ended = message
                break
            else:
                started = True
                if refused and "how" in message and way.files == "landlock":
                    message["how"] += f" ({refused[0]})"
                self.tell(**message, layers=layers)
        os.close(listen)
        code = ended.get("exit", self._wait_for(pid))
        if started:
            self.tell(exit=code)
        return started

    def _messages(self, listen: int) -> Any:
        """What the child says, until it has nothing to say any more."""
        rest = b""
        while True:
            if not self._ready(listen):
                continue
            got = os.read(listen, 65536)
            if not got:
                return
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _wait_for(self, pid: int) -> int:
        while True:
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(code)
            self._ready(self._wake)  # or after a while: who started us may have blocked the signal
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def _ready(self, fd: int) -> bool:
        """Wait until ``fd`` can be read, for one look at the disk at most; end where the launcher is gone."""
        ready, _, _ = select.select([fd, self.lifeline], [], [], _LOOK)
        if self.lifeline in ready:
            raise _Cut
        if not ready:
            self._watch_disk()
        return bool(ready)

    def _watch_disk(self) -> None:
        """A rerun that writes checkpoint after checkpoint must not fill the disk of the user."""
        folder = self.layers[-1] if self.layers and os.path.isdir(self.layers[-1]) else self.order["session"]
        free = _free(folder)
        self._least.setdefault(folder, min(_SPARE, free // 2))
        if free < self._least[folder]:
            self.tell(how="", failed=f"the rerun was ended: what it wrote to {folder} has nearly filled the disk")
            raise _Cut

    def finish(self) -> None:
        """No process is left; nor a file, where the launcher is gone without a word."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while _kill_descendants():
            pass
        with contextlib.suppress(OSError):
            os.close(self.status)
        # The end of the command is not the end of its files: the launcher still reads the layers.
        word = os.read(self.lifeline, 1)
        if not word:
            for folder in [*self.layers, self.order["session"]]:
                overlay.remove(Path(folder))


def _cut(*_: object) -> NoReturn:
    raise _Cut


def _free(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _kill_descendants() -> bool:
    """Kill every child (orphans below become children) and collect those that ended; False when there is none.

    It does not wait for one that the list of children may have missed, as the kernel allows: it is asked again.
    """
    own = os.getpid()
    for task in os.listdir("/proc/self/task"):
        children = Path(f"/proc/self/task/{task}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else _children_of(own)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    time.sleep(_AGAIN)
    return True


def _children_of(parent: int) -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == parent:
                    found.append(int(name))
    return found


def _begin(
    order: dict[str, Any], way: stages.Way, layers: str, answer: int, parent: int, close: tuple[int, ...]
) -> NoReturn:
    """In the child: shut in, then the command. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for fd in close:
            os.close(fd)
        for number in (*_WAITED, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _calls.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        needs = stages.Needs(
            layers=Path(layers),
            session=Path(order["session"]),
            must=[Path(path) for path in order["protect"]],
            way=[Path(order["environment"].get(name, "/")) for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")],
            offline=order["offline"],
            stubs=[(Path(stub), Path(program)) for stub, program in order["stubs"]],
        )
        gone = way.unshare(needs.offline)
        if way.own_pids:
            _first_of_namespace(order, way, needs, gone, answer)
        _calls.die_with_parent()  # new namespaces may have taken it back
        _execute(order, way.protect(needs, gone), answer, denies=way.files == "landlock")
    except stages.Refused as error:
        _answer(answer, refused=str(error))
    except OSError as error:
        _answer(answer, refused=f"{way.files}: {error}")
    finally:
        os._exit(1)


def _first_of_namespace(
    order: dict[str, Any], way: stages.Way, needs: stages.Needs, gone: bool, answer: int
) -> NoReturn:
    """The next child is the first process of the pid namespace: when it ends, the kernel kills all others."""
    alive, held = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(alive)
        os.close(answer)
        os.waitpid(pid, 0)
        os._exit(0)
    os.close(held)
    _calls.die_with_parent()
    if select.select([alive], [], [], 0)[0]:  # the parent died before that was said
        os._exit(1)
    how = way.protect(needs, gone)
    main = os.fork()
    if not main:
        _execute(order, how, answer, denies=False)
    while True:
        pid, status = os.wait()
        if pid == main:
            _answer(answer, exit=os.waitstatus_to_exitcode(status))
            os._exit(0)


def _execute(order: dict[str, Any], how: str, answer: int, denies: bool) -> NoReturn:
    environment = order["environment"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file goes where the system says, past every overlay
    if denies:
        environment["TMPDIR"] = str(Path(order["session"]) / "tmp")
    os.chdir(order["cwd"])  # again: a folder that was entered before lies below the overlay
    program = shutil.which(order["command"][0], path=environment.get("PATH"))
    if program is None:
        _answer(answer, how=how, failed=f"{order['command'][0]}: no such program")
        os._exit(127)
    _answer(answer, how=how, denies=denies)
    try:
        os.execve(program, order["command"], environment)
    except OSError as error:
        _answer(answer, how=how, failed=f"{order['command'][0]} cannot be started: {error.strerror}")
        os._exit(126)


def _answer(fd: int, **message: Any) -> None:
    os.write(fd, (json.dumps(message) + "\n").encode())
