"""Runs that lie elsewhere: in memory, behind a web server, in an S3 store."""

from __future__ import annotations

import json
import logging
import lzma
import os
import re
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import postmortem
from postmortem.core.errors import NotFoundError, PostmortemError, UsageError
from postmortem.runs import remote

if TYPE_CHECKING:
    from collections.abc import Iterator

fsspec = pytest.importorskip("fsspec")

LOG = "".join(f"step {i} loss {3 - i / 100 if i < 150 else float('nan')}\n" for i in range(200))
CSV = "step,loss\n" + "".join(f"{i},{3 - i / 100:.2f}\n" for i in range(200))
MLFLOW = Path(__file__).parent.parent / "readers" / "mlflow_stores" / "mlflow.db.xz"


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


class Server(ThreadingHTTPServer):
    """Serves `files` on loopback with ranges, if `ranges`, and counts the bytes it sends of each."""

    def __init__(self, files: dict[str, bytes], *, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.sent = files, ranges, dict.fromkeys(files, 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        path = self.path.lstrip("/")
        if path.endswith("/"):
            names = "".join(f'<a href="{name[len(path) :]}">x</a>' for name in self.server.files if name != path)
            data, path = f"<html>{names}</html>".encode(), ""
        elif path in self.server.files:
            data = self.server.files[path]
        else:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.server.ranges else None
        part = data[int(asked[1]) : int(asked[2]) + 1] if asked else data
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.wfile.write(part)
            self.server.sent[path] = self.server.sent.get(path, 0) + len(part)


@contextmanager
def serving(files: dict[str, bytes], *, ranges: bool = True) -> Iterator[Server]:
    server = Server(files, ranges=ranges)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_folder_of_runs(memory: Any, postmortem: Any) -> None:
    """Runs below a URL are found as in a folder; all output names the URL, none the copy."""
    memory.pipe({"/jobs/a/train.log": LOG.encode(), "/jobs/b/metrics.csv": CSV.encode(), "/jobs/b/x.bin": b"\0" * 9999})
    called = postmortem("scan", "memory://jobs", "--format", "json")
    document = json.loads(called.out)
    assert [(run["path"], run["verdict"]) for run in document["runs"]] == [
        ("memory://jobs/a", "failed"),
        ("memory://jobs/b", "healthy"),
    ]
    assert document["runs"][0]["sources"][0]["files"] == ["memory://jobs/a/train.log"]
    assert "postmortem-" not in called.out
    assert "$ postmortem" not in postmortem("scan", "memory://jobs/a").out  # the replay would look for files here


@pytest.mark.parametrize(("status", "why"), [(404, None), (410, None), (403, "the server answers 403 Forbidden")])
def test_what_a_server_answers(status: int, why: str | None) -> None:
    """fsspec has one exception for a file that is not there and for a server that does not give it."""
    cause = OSError()
    cause.status, cause.message = status, "Forbidden"  # type: ignore[attr-defined]
    assert remote._unreachable(cause) == why


def test_show_names_the_url(memory: Any, postmortem: Any) -> None:
    """The folder of the copy is gone when the command ends."""
    memory.pipe("/runs/a/train.log", LOG.encode())
    called = postmortem("show", "memory://runs/a")
    assert (called.code, called.out.splitlines()[0]) == (0, "a  (memory://runs/a)"), called.out + called.err
    assert json.loads(postmortem("show", "memory://runs/a", "--format", "json").out)["path"] == "memory://runs/a"


def test_one_file_and_its_refresh(memory: Any) -> None:
    """`load` of a URL; a refresh sees what was added, and what replaced it."""
    rows = LOG.splitlines(keepends=True)
    memory.pipe("/x/train.log", "".join(rows[:100]).encode())
    run = postmortem.load("memory://x/train.log")
    assert (run.name, len(run.series("loss")), run.sources[0].files) == ("train.log", 100, ("memory://x/train.log",))
    memory.pipe("/x/train.log", "".join(rows[:180]).encode())
    run = run.refresh()
    assert (len(run.series("loss")), run.sources[0].files) == (180, ("memory://x/train.log",))
    memory.pipe("/x/train.log", b"step 1 loss 2.5\nstep 2 loss 2.25\n")
    assert run.refresh().series("loss").tolist() == [2.5, 2.25]


def test_events_problems_and_checkpoints_name_the_url(memory: Any) -> None:
    """What a report says of files elsewhere has their URL; checkpoints there are counted, not copied."""
    memory.pipe(
        {
            "/r/run/train.log": (LOG + "RuntimeError: CUDA error: out of memory\n").encode(),
            "/r/run/train.csv.gz": b"\x1f\x8b\x08 and more that is damaged",
            "/r/run/step-100.pt": b"PK\x03\x04" * 5000,
        }
    )
    report = postmortem.scan("memory://r/run")
    (run,) = [run for run in report.runs if run.events]
    assert run.events[0].file == "memory://r/run/train.log"
    problems = [*report.problems, *(p for run in report.runs for p in run.problems)]
    assert {p.path for p in problems} == {"memory://r/run", "memory://r/run/train.csv.gz"}
    assert any("1 checkpoints, as step-100.pt" in p.what for p in problems)


def test_what_needs_the_files_beside_it(memory: Any) -> None:
    """Settings, the files of a folder store and a database are copied whole, other files only where they are read."""
    memory.pipe(
        {
            "/m/mlruns/1/0a/meta.yaml": b"run_id: 0a\nrun_name: fox\nstatus: 3\n",
            "/m/mlruns/1/0a/metrics/loss": "".join(
                f"17000000{i:02}000 {1 / (i + 1)} {i}\n" for i in range(99)
            ).encode(),
            "/m/mlflow.db": lzma.decompress(MLFLOW.read_bytes()),
            "/m/exp/train.log": LOG.encode(),
            "/m/exp/config.yaml": b"lr: 0.1\n",
        }
    )
    report = postmortem.scan("memory://m")
    assert len(report.runs) == 8
    by_path = {run.path: run for run in report.runs}
    assert by_path["memory://m/mlruns/1/0a"].sources[0].points == 99
    assert by_path["memory://m/exp"].run is not None
    assert by_path["memory://m/exp"].run.config == {"lr": 0.1}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_web_server(ranges: bool) -> None:
    """A file behind http, with ranges and without; a refresh asks for what is new and two probes."""
    long = LOG.replace("nan", "0.5").encode() * 40
    with serving({"logs/train.log": long}, ranges=ranges) as server:
        run = postmortem.load(f"{server.url}/logs/train.log")
        assert len(run.frame) == 200 * 40
        before = server.sent["logs/train.log"]
        server.files["logs/train.log"] = long + b"step 9000 loss nan\n"
        run = run.refresh()
        assert (len(run.frame), run.problems) == (200 * 40 + 1, [])
        if ranges:
            assert before == len(long)
            assert server.sent["logs/train.log"] - before < 3 * 4096


def test_a_page_of_links() -> None:
    """The links of a page that ends with a slash are its files; of those that no reader takes only the head is sent."""
    files = {"runs/train.log": LOG.encode(), "runs/movie.mp4": b"\0" * 500_000, "runs/?C=N;O=D": b"<html></html>"}
    with serving(files) as server:
        report = postmortem.scan(f"{server.url}/runs/")
        assert [(run.path, run.verdict) for run in report.runs] == [(f"{server.url}/runs/", "failed")]
        assert server.sent["runs/movie.mp4"] <= 4096
        with pytest.raises(NotFoundError, match="no such file or folder"):
            postmortem.load(f"{server.url}/runs/other.log")


def test_an_s3_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of a local S3 server: runs, ranges, a refresh, and a bucket that is not there."""
    pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server")
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        store = fsspec.filesystem("s3")
        store.mkdir("bucket")
        store.pipe("bucket/runs/a/train.log", LOG.encode())
        store.pipe("bucket/runs/b/metrics.csv", CSV.encode())
        report = postmortem.scan("s3://bucket/runs")
        found = [(run.path, run.verdict) for run in report.runs]
        assert found == [("s3://bucket/runs/a", "failed"), ("s3://bucket/runs/b", "healthy")]
        run = postmortem.load("s3://bucket/runs/b/metrics.csv")
        store.pipe("bucket/runs/b/metrics.csv", (CSV + "200,0.9\n").encode())
        assert len(run.refresh().series("loss")) == 201
        with pytest.raises(PostmortemError, match="s3://nobody/runs"):
            postmortem.scan("s3://nobody/runs")
    finally:
        server.stop()


def test_what_cannot_be_reached(tmp_path: Path, postmortem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear line each: no such protocol, no server, a command that needs files, a missing package."""
    of_the_program = logging.getLogger("asyncio").handlers[:]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{unused.getsockname()[1]}/a.log"
        for url, what in (
            ("bogus://x/y", "bogus"),
            (refused, "read: Cannot connect"),
            ("memory://none", "no such file"),
        ):
            called = postmortem("scan", url)
            assert (called.code, what in called.err, called.err.count("\n")) == (2, True, 1), called.err
    assert logging.getLogger("gcsfs").handlers  # else Python prints what it logs, with its tracebacks
    assert logging.getLogger("asyncio").handlers == of_the_program
    assert "local files only" in postmortem("checkpoints", "s3://a/b").err
    (tmp_path / "train.log").write_text(LOG)
    assert postmortem("scan", (tmp_path / "train.log").as_uri()).code == 1
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    assert "requires the extra [remote]" in postmortem("scan", "memory://x").err


def test_names_that_lead_elsewhere() -> None:
    """A name in a store may hold anything: none leaves the folder of the copy."""
    inside = remote._inside
    assert inside("b/runs/a/x.log", "b/runs") == Path("a/x.log")
    for name in ("b/runs/../../x.log", "b/runs/%2e%2e/x.log", "b/runs2/x.log", "c/x.log", "b/runs/?C=N", "b/runs//"):
        assert inside(name, "b/runs") is None, name
    with pytest.raises(UsageError, match="local files"):
        postmortem.checkpoints("s3://bucket/x")
    assert not any(remote.is_url(given) for given in ("a/b", "C://x", os.curdir, Path("x")))
