"""A copy of the process has no network, and the program is copied anew where it has started a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="nothing forks there")]

NETWORK = """
import socket, ssl, threading, urllib.request
from postmortem.attach.standby import others

server = socket.create_server(("127.0.0.1", 0))
kept = socket.create_connection(server.getsockname())
kept.sendall(b"before")
others.close_network()
for what in (
    lambda: kept.sendall(b"after"),
    lambda: kept.send(b"after"),
    lambda: socket.create_connection(server.getsockname()),
    lambda: urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}"),
):
    try:
        what()
    except OSError as error:
        print("refused" if "no network" in str(error) else error)
got, _ = server.accept()
print(got.recv(100).decode())
server.settimeout(0)
try:
    server.accept()
except BlockingIOError:
    print("nobody else")
"""
PROCESS = """
import subprocess, sys
from postmortem.attach import boundaries
from postmortem.attach.observer import Observer

boundaries.install(Observer())
before = boundaries.listener.processes
subprocess.run([sys.executable, "-c", "pass"], check=True)
print(boundaries.listener.processes - before)
"""


def said_by(script: str) -> list[str]:
    """The lines that a program prints."""
    return subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=100
    ).stdout.split("\n")[:-1]


def test_nothing_is_sent_from_a_copy() -> None:
    """By a connection that was there before, or by a new one."""
    assert said_by(NETWORK) == ["refused"] * 4 + ["before", "nobody else"]


def test_a_process_that_the_program_starts_is_counted() -> None:
    """Once, whatever it is started by."""
    assert said_by(PROCESS) == ["1"]
