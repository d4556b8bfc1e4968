"""Runs a program that imports torch in a copy of one process that has imported it.

Importing torch and making the first optimizer takes a fresh process 3 s of CPU. For tests of what a program does; where
the start of a process is what is tested (`postmortem run`, what is injected, tracebacks), they start a real one.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def run(
    *args: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """``python ARGS…`` with one thread and a session of its own: a script, ``-c CODE`` or ``-m MODULE`` first.

    Raises subprocess.TimeoutExpired after so many seconds; it is ended then.
    """
    given = {"OMP_NUM_THREADS": "1", **os.environ, **(env or {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        order = json.dumps({"args": args, "cwd": str(cwd or Path.cwd()), "env": given}).encode()
        server = _server()
        socket.send_fds(server, [order], [out.fileno(), err.fileno()])
        pid = _number(server)
        server.settimeout(timeout)
        try:
            code = _number(server)
        except TimeoutError as error:
            os.killpg(pid, signal.SIGKILL)
            server.settimeout(None)
            _number(server)
            raise subprocess.TimeoutExpired(args, timeout) from error
        finally:
            server.settimeout(None)
        text = [file.seek(0) or file.read().decode(errors="replace") for file in (out, err)]
    return subprocess.CompletedProcess(args, code, *text)


@functools.cache
def _server() -> socket.socket:
    """The process that is copied, started when it is first needed: by its end of a pipe."""
    ours, its = socket.socketpair()
    command = [sys.executable, str(Path(__file__)), str(its.fileno())]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, pass_fds=[its.fileno()], env=env, stdin=subprocess.DEVNULL)
    its.close()

    def end() -> None:
        ours.close()
        process.wait(20)

    atexit.register(end)
    return ours


def _number(server: socket.socket) -> int:
    """The next line that it says."""
    text = b""
    while not text.endswith(b"\n"):
        byte = server.recv(1)
        if not byte:
            raise RuntimeError("the process that is copied has ended")
        text += byte
    return int(text)


def _serve(orders: socket.socket) -> dict[str, Any]:
    """Forks for each order and tells the child's number and its exit code; returns, in the child, the order."""
    while True:
        told, files, *_ = socket.recv_fds(orders, 1 << 20, 2)
        if not told:
            os._exit(0)
        child = os.fork()
        if child == 0:
            os.setsid()
            for number, file in enumerate(files, start=1):
                os.dup2(file, number)
                os.close(file)
            order: dict[str, Any] = json.loads(told)
            return order
        for file in files:
            os.close(file)
        orders.sendall(f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        orders.sendall(f"{code}\n".encode())


def _become(order: dict[str, Any]) -> None:
    """Runs the program of an order as `python` does."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    torch.seed()
    first, *rest = order["args"]
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).parent.resolve())
        runpy.run_path(first, run_name="__main__")


def _exit_code(order: dict[str, Any]) -> int:
    """Runs the program of an order; what `python` prints and returns for its end."""
    try:
        _become(order)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        frames, ours = error.__traceback__, {__file__, runpy.run_path.__code__.co_filename}
        while frames is not None and frames.tb_frame.f_code.co_filename in ours:
            frames = frames.tb_next
        sys.excepthook(type(error), error, frames)
        return 1
    return 0


if __name__ == "__main__":
    import torch._dynamo  # the first optimizer of a process imports it

    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as _orders:
        _order = _serve(_orders)
    _code = _exit_code(_order)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for _stream in (sys.stdout, sys.stderr):
        if not _stream.closed:
            _stream.flush()
    os._exit(_code)  # the interpreter would take down all modules of torch, for a second
