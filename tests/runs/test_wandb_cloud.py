"""Runs in W&B's cloud, read through the real SDK from a server on loopback that speaks its protocol."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import postmortem
from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError, UsageError
from postmortem.runs.wandb_cloud import _declared_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

wandb = pytest.importorskip("wandb")

ROWS = 2_500
"""More than a page of the SDK."""
OUTPUT = 'starting\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch\n'
CONFIG = {
    "lr": {"value": 0.001},
    "_wandb": {"value": {"m": [{"1": "count", "6": [3]}, {"2": "train/*", "5": 1, "6": [1]}]}},
}


def row(step: int) -> dict[str, Any]:
    loss = "NaN" if step >= 2_400 else 2 - step / 2_000
    return {"_step": step, "_timestamp": 1.7e9 + step, "train/loss": loss, "count": step * 5}


class Server(ThreadingHTTPServer):
    """W&B's GraphQL server with runs of one project, as far as the SDK asks."""

    def __init__(self, runs: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs = runs
        self.url = f"http://127.0.0.1:{self.server_port}"

    def run(self, name: str) -> dict[str, Any] | None:
        if name not in self.runs:
            return None
        empty = ("sweepName", "group", "jobType", "commit", "description", "notes")
        return {
            **dict.fromkeys(empty),
            "id": name,
            "name": name,
            "displayName": f"run {name}",
            "state": "crashed",
            "tags": [],
            "createdAt": "2024-01-01T00:00:00",
            "heartbeatAt": "2024-01-01T01:00:00",
            "readOnly": False,
            "systemMetrics": "{}",
            "summaryMetrics": "{}",
            "config": json.dumps(CONFIG),
            "projectId": "1",
            "user": {"name": "u", "username": "u"},
            "historyLineCount": ROWS,
            "historyKeys": {"step": -1, "keys": {}, "lastStep": ROWS - 1},
        }

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "viewer" in query:
            return {"viewer": {"id": "1", "entity": "team", "username": "u", "flags": "{}", "teams": {"edges": []}}}
        if "query Runs" in query:
            edges = [{"node": self.run(name), "cursor": name} for name in self.runs]
            page = {"endCursor": None, "hasNextPage": False}
            runs = {"edges": edges, "pageInfo": page}
            return {"project": {"internalId": "1", "runCount": len(edges), "readOnly": False, "runs": runs}}
        name = variables.get("name") or variables.get("run") or variables.get("runName")
        found = self.run(name)
        if "parquetHistory" in query:
            found = {"parquetHistory": {"parquetUrls": [], "liveData": []}}
        elif "history(" in query:
            asked = range(variables["minStep"], min(variables["maxStep"], ROWS))
            found = {"history": [json.dumps(row(step)) for step in asked]}
        elif "RunFiles" in query:
            file = "output.log" if variables["fileNames"] == ["output.log"] else "wandb-metadata.json"
            node = {"id": "f", "name": file, "url": f"{self.url}/{file}", "directUrl": f"{self.url}/{file}"}
            node |= {"sizeBytes": "9", "mimetype": "", "updatedAt": "2024-01-01T00:00:00", "md5": ""}
            files = {"edges": [{"node": node, "cursor": "c"}], "pageInfo": {"endCursor": None, "hasNextPage": False}}
            found = {"fileCount": 1, "files": files}
        return {"project": {"internalId": "1", "run": found}}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        files = {"/output.log": OUTPUT.encode(), "/wandb-metadata.json": b'{"host": "node7", "program": "train.py"}'}
        self.send(files.get(self.path, b""), 200 if self.path in files else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/graphql":  # the SDK's report on its own use
            self.send(b"{}")
            return
        asked = json.loads(body)
        self.send(json.dumps({"data": self.server.answer(asked["query"], asked.get("variables") or {})}).encode())

    def send(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server(["abc123"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path))
    for name, value in (("BASE_URL", server.url), ("API_KEY", "a" * 40), ("SILENT", "true"), ("ERROR_REPORTING", "0")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield server
    wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)  # programs of other tests would use this one's
    server.shutdown()
    server.server_close()


def test_a_run_of_the_cloud(cloud: Server) -> None:
    """Every row of the history on the declared step, NaN among them; configuration, host, output and state."""
    run = postmortem.load("wandb://team/project/abc123")
    loss = run.frame[run.frame["tag"] == "train/loss"]
    assert loss["step"].tolist() == [i * 5 for i in range(ROWS)]
    assert np.isnan(loss["value"].to_numpy()[2_400:]).all()
    assert loss["value"].to_numpy()[:2_400].tolist() == [2 - i / 2_000 for i in range(2_400)]
    assert loss["wall_time"].tolist()[-1] == 1.7e9 + ROWS - 1
    assert run.config == {"lr": 0.001}
    report = postmortem.scan("wandb://team/project/abc123").runs[0]
    assert report.path == "wandb://team/project/abc123"
    assert report.verdict == "failed"
    assert {finding.code: finding.step for finding in report.findings}["NAN001"] == 12_000
    assert any("bad batch" in event.message for event in report.events)


def test_all_runs_of_a_project(cloud: Server) -> None:
    """Each run of a project is a run, on the same declared steps as alone."""
    cloud.runs = ["abc123", "def456"]
    report = postmortem.scan("wandb://team/project")
    assert sorted(run.path for run in report.runs) == [f"wandb://team/project/{name}" for name in cloud.runs]
    assert [finding.step for run in report.runs for finding in run.findings if finding.code == "NAN001"] == [12_000] * 2


@pytest.mark.parametrize("url", ["wandb://team", "wandb://team/project/run/more", "wandb://team//run"])
def test_what_names_no_run(url: str) -> None:
    """The message shows the form."""
    with pytest.raises(UsageError, match="wandb://ENTITY/PROJECT/RUN"):
        postmortem.load(url)


def test_what_is_not_there(cloud: Server) -> None:
    """A run or project that the server does not know."""
    with pytest.raises(NotFoundError, match="other"):
        postmortem.load("wandb://team/project/other")
    cloud.runs = []
    with pytest.raises(NotFoundError, match="no runs in this project"):
        postmortem.scan("wandb://team/empty")


def test_a_server_that_does_not_answer(cloud: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, no traceback of the SDK."""
    monkeypatch.setattr(cloud, "answer", lambda query, variables: {})
    with pytest.raises(PostmortemError, match="wandb://team/project/abc123: "):
        postmortem.load("wandb://team/project/abc123")


def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"\[wandb\]"):
        postmortem.load("wandb://team/project/abc123")


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({"m": [{"1": "n"}, {"1": "loss", "5": 1}]}, {"loss": "n"}),
        ({"m": [{"2": "*", "4": "n"}]}, {"*": "n"}),
        ({"m": [{"2": "*", "5": 9}, 3, {"5": "x"}]}, {}),
        ({"m": 3}, {}),
        (None, {}),
    ],
)
def test_declared_steps(own: Any, found: dict[str, str]) -> None:
    """By place or by name; what is in another form declares nothing."""
    assert _declared_steps({"_wandb": own}) == found
