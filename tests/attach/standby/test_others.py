"""A copy of the process hears what the program heard, and sends nothing; a program that starts one is copied anew."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests import warm

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="nothing forks there")]

NETWORK = """
import os, socket, threading
from postmortem.attach.boundaries.network import WAY
from postmortem.attach.standby import others
from postmortem.attach.standby.loaders import NoBatch

server = socket.create_server(("127.0.0.1", 0))
kept = socket.create_connection(server.getsockname())
kept.sendall(b"before")
others.close_network({(WAY, 0): b"one", (WAY, 1): NoBatch(TimeoutError("late")), (WAY, 2): b"three"})

def heard(reading):
    try:
        print(reading())
    except OSError as error:
        print("refused" if "no network" in str(error) else error)

kept.sendall(b"after")
print(kept.send(b"after"))
new = socket.create_connection(("nobody.invalid", 80))
new.sendall(b"GET /")
heard(lambda: kept.recv(100))
heard(lambda: kept.recv(100))
heard(lambda: new.makefile("rb").read(5))
heard(lambda: new.recv(100))
other = threading.Thread(target=heard, args=(lambda: kept.send(b"other"),))
other.start()
other.join()
left, right = socket.socketpair()
heard(lambda: left.send(b"x"))

import select
got, _ = server.accept()
print(os.read(got.fileno(), 100))
print(select.select([server, got], [], [], 0.2)[0])
"""
HTTP = """
import http.server, json, os, threading, urllib.request
import torch
from torch import nn

class Tracker(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        row = self.rfile.read(int(self.headers["Content-Length"]))
        with open("received.jsonl", "ab") as file:
            file.write(row + b"\\n")
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
torch.manual_seed(0)
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(12):
    x = torch.randn(8, 5).abs()
    if step == 9:
        x[3] = 0
    loss = (net(x).exp() + torch.log(x.sum(1))).mean()  # the fault
    row = json.dumps({"step": step, "loss": loss.item()}).encode()
    with urllib.request.urlopen(urllib.request.Request(address, row), timeout=20) as reply:
        if reply.read() != b"ok":
            raise SystemExit("the tracker does not answer")
    opt.zero_grad()
    loss.backward()
    opt.step()
server.shutdown()
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
    done = warm.run("-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_nothing_is_sent_from_a_copy() -> None:
    """By a connection that was there before, or by a new one; and it hears what the program heard, up to its end."""
    assert said_by(NETWORK) == [
        "5",
        "b'one'",
        "late",
        "b'three'",
        "refused",
        "refused",
        "refused",
        "b'before'",
        "[]",
    ]


def test_a_program_that_logs_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postmortem) -> None:
    """Its step is repeated by a copy, and the server gets each row once."""
    (tmp_path / "train.py").write_text(HTTP)
    monkeypatch.chdir(tmp_path)
    called = postmortem("run", "--format", "json", "--", sys.executable, "train.py")
    culprit = json.loads(called.out)["culprit"]
    where = HTTP.splitlines().index(next(line for line in HTTP.splitlines() if "# the fault" in line)) + 1
    assert (culprit["op"], culprit["line"], culprit["samples"]) == ("log", where, [3]), called
    rows = [json.loads(row)["step"] for row in (tmp_path / "received.jsonl").read_text().splitlines()]
    assert rows == list(range(12))


def test_a_process_that_the_program_starts_is_counted() -> None:
    """Once, whatever it is started by."""
    assert said_by(PROCESS) == ["1"]
