"""`postmortem serve`: what it shows, to whom, and the two things that it changes."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from postmortem.checkpoints.histories import ask_level, note_watch, wanted_level
from postmortem.core.errors import NotFoundError, UsageError
from postmortem.following.server import Server
from postmortem.following.service import Service

FINE = [f"step={i} loss={1 / (i + 1):.4f}" for i in range(40)]
BAD = [f"step={i} loss=nan" for i in range(40, 60)]
ROWS = [{"tick": i, "step": i, "loss": 1 / (i + 1), "lr": 0.1} for i in range(30)]


def write(path: Path, lines: list[str]) -> None:
    """A log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A training under watch: its log, and the history."""
    write(tmp_path / "train.log", FINE)
    history = tmp_path / "postmortem-report/history/20261124-000000"
    write(history / "history.jsonl", [json.dumps(row) for row in ROWS])
    note_watch(history, None, level="basic", pid=1)
    return tmp_path


class Client:
    """Talks to a server of a run."""

    def __init__(self, server: Server) -> None:
        self.token, self.port = server.token, server.server_port

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
        """-> (status, text), with the token unless headers say otherwise."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {"Authorization": f"Bearer {self.token}", **headers}
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in sent.items() if v})
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode()

    def json(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> dict:
        """The document of an answer that is one."""
        code, text = self.ask(path, method, body, **headers)
        assert code == 200, text
        return json.loads(text)


@pytest.fixture
def served(run: Path, monkeypatch: pytest.MonkeyPatch):
    """A client of the server of `run`, which looks at the files at every request."""
    monkeypatch.setattr("postmortem.following.service._LOOK", 0.0)
    monkeypatch.setattr("postmortem.following.service._BUSY", 0.0)
    with Server(Service(run), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield Client(server)
        server.shutdown()
        thread.join(10)


def test_the_run_as_it_grows(run: Path, served: Client) -> None:
    """Verdict, findings, last values and the history, as JSON and as a page; and again when the log has grown."""
    first = served.json("/summary")
    assert (first["run"]["verdict"], first["run"]["ended"]) == ("healthy", "running")
    assert {v["tag"]: v["value"] for v in first["last"]}["loss"] == pytest.approx(1 / 40, abs=1e-4)
    assert first["history"]["files"][0]["last"]["tick"] == 29
    write(run / "train.log", FINE + BAD)
    then = served.json("/summary")
    assert then["run"]["verdict"] == "failed"
    assert "NAN001" in [f["code"] for f in then["run"]["findings"]]
    assert {v["tag"]: v["value"] for v in then["last"]}["loss"] == "nan"
    code, page = served.ask("/")
    assert code == 200
    for words in ("failed", "nan-onset", "Set level", "Clear the history"):
        assert words in page
    assert "<script" not in page


def test_level_and_history(run: Path, served: Client) -> None:
    """The level is asked for in the folder of the history; clearing empties its files; both only by POST."""
    history = run / "postmortem-report/history/20261124-000000"
    assert served.json("/level")["watches"][0]["level"] == "basic"
    assert served.json("/level", "POST", "level=advanced")["wanted"] == "advanced"
    assert served.json("/level", "POST", '{"level": "extreme"}', Content_Type="application/json")["wanted"] == "extreme"
    assert wanted_level(history)[1] == "extreme"
    assert served.ask("/level", "POST", "level=much")[0] == 400
    assert served.ask("/history/clear")[0] == 405
    assert (history / "history.jsonl").stat().st_size > 0
    assert served.json("/history/clear", "POST")["cleared_bytes"] > 0
    assert (history / "history.jsonl").read_bytes() == b""
    assert (run / "train.log").stat().st_size > 0
    note_watch(history, None, level="basic", pid=1, ended=1.0)
    served.ask("/summary")
    code, why = served.ask("/level", "POST", "level=basic")
    assert (code, why.count("\n")) == (409, 1)


def test_a_form_goes_back_to_the_page(served: Client) -> None:
    """What a browser sends: the token as a hidden field, and it is led back."""
    body = f"level=advanced&token={served.token}"
    code, _ = served.ask("/level", "POST", body, Authorization="", Accept="text/html,*/*")
    assert code == 303


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/summary", {"Authorization": ""}, 401),
        ("/summary", {"Authorization": "Bearer wrong"}, 401),
        ("/summary?token=%00%ff", {"Authorization": ""}, 401),
        ("/summary", {"Host": "evil.example"}, 421),
        ("/summary", {"Host": "127.0.0.1.evil.example"}, 421),
        ("/summary", {"Host": "192.0.2.7"}, 421),
        ("/summary", {"Host": "[::1"}, 400),
        ("/summary", {"Host": "localhost:1234"}, 200),
        ("/summary", {"Host": "[::1]:80"}, 200),
        ("/../../../etc/passwd", {}, 404),
        ("/train.log", {}, 404),
        ("//etc/passwd", {}, 404),
    ],
)
def test_who_is_answered(served: Client, path: str, headers: dict[str, str], code: int) -> None:
    """Only with the token, only for a Host of this machine, and only the routes: no file."""
    got, text = served.ask(path, **headers)
    assert (got, "root:" in text, "step=" in text) == (code, False, False)


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        ("x" * 5000, {}, 413),
        ("level=advanced", {"Content_Length": "-1"}, 413),
        ("[1]", {"Content_Type": "application/json"}, 400),
        ("{", {"Content_Type": "application/json"}, 400),
        ("level=advanced", {"Authorization": ""}, 401),
        ("level=advanced", {"Host": "evil.example"}, 421),
    ],
)
def test_bad_requests(run: Path, served: Client, body: str, headers: dict[str, str], code: int) -> None:
    """One line each, and nothing is changed."""
    assert served.ask("/level", "POST", body, **headers)[0] == code
    assert not (run / "postmortem-report/history/20261124-000000/level").exists()


def test_bytes_that_are_no_request(served: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """A client that talks nonsense, or leaves, ends nothing and prints nothing."""
    for data in (b"\x16\x03\x01\x00\xa5", b"GET / HTTP/1.0\r\nContent-Length: x\r\n", b""):
        with socket.create_connection(("127.0.0.1", served.port), timeout=5) as client:
            client.sendall(data)
    assert served.ask("/level")[0] == 200
    assert capsys.readouterr().err == ""


def test_files_that_are_gone(run: Path, served: Client) -> None:
    """The page says so."""
    served.ask("/summary")
    for path in sorted(run.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    for _ in range(2):
        served.ask("/summary")
    assert served.json("/summary")["run"] is None
    assert "The files of the run are gone" in served.ask("/")[1]


def test_without_a_watch(tmp_path: Path) -> None:
    """Nobody would hear the level; several runs and none are refused."""
    write(tmp_path / "a/train.log", FINE)
    service = Service(tmp_path / "a")
    assert service.level() == {"wanted": None, "watches": []}
    for asked in (lambda: service.set_level("basic"), service.clear):
        with pytest.raises(Exception, match="no history of a watch"):
            asked()
    write(tmp_path / "b/train.log", FINE)
    with pytest.raises(UsageError, match="holds 2 runs"):
        Service(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no training log"):
        Service(tmp_path / "empty")


def test_the_history_of_one_of_several_runs(tmp_path: Path) -> None:
    """While it trains nobody knows whose history it is; the only one that is being written is shown with each run."""
    for name in "ab":
        write(tmp_path / "runs" / name / "train.log", FINE)
    history = tmp_path / "postmortem-report/history/20261124-000000"
    write(history / "history.jsonl", [json.dumps(row) for row in ROWS])
    note_watch(history, None, level="basic", pid=1)
    assert Service(tmp_path / "runs/a").set_level("advanced")["wanted"] == "advanced"
    note_watch(history, None, level="advanced", pid=1, ended=1.0)
    assert Service(tmp_path / "runs/a").history() is None


def test_the_history_of_links_is_left_alone(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link among the files of a history is not followed: what it leads to is not emptied."""
    other = tmp_path_factory.mktemp("other") / "precious"
    other.write_text("keep")
    (run / "postmortem-report/history/20261124-000000/history-rank7.jsonl").symlink_to(other)
    assert Service(run).clear()["cleared_bytes"] > 0
    assert other.read_text() == "keep"


def test_from_the_command_line(run: Path) -> None:
    """The URL is printed, the token differs each time, and Ctrl-C ends it with exit code 0."""
    command = [sys.executable, "-m", "postmortem", "serve", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(100, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
        where = urlsplit(url)
        connection = http.client.HTTPConnection("127.0.0.1", where.port or 0, timeout=30)
        connection.request("GET", f"/summary?{where.query}")
        with connection.getresponse() as answer:
            assert json.loads(answer.read())["run"]["verdict"] == "healthy"
        connection.close()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        limit.cancel()
        process.kill()
    assert (process.returncode, err) == (0, "postmortem: ended\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [(["nowhere"], "no such file or folder"), ([".", "--host", "256.1.1.1"], "256.1.1.1:0: ")],
)
def test_what_cannot_be_served_is_one_line(postmortem, run: Path, monkeypatch, options, words: str) -> None:
    """Exit code 2."""
    monkeypatch.chdir(run)
    called = postmortem("serve", *options)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert words in called.err


def test_any_word_is_no_level(tmp_path: Path) -> None:
    """Somebody's typo in the file changes nothing."""
    assert wanted_level(tmp_path) == (0, None)
    ask_level(tmp_path, "extreme")
    assert wanted_level(tmp_path)[1] == "extreme"
    (tmp_path / "level").write_bytes(b"\xff" * 1000)
    assert wanted_level(tmp_path)[1] is None
