"""`postmortem watch-logs`: what is new in runs that grow, once each, and who is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from postmortem.following.follow import Follow

FINE = [f"step={i} loss={1 / (i + 1):.4f}" for i in range(40)]
BAD = [f"step={i} loss=nan" for i in range(40, 60)]


def write(path: Path, lines: list[str], *, ago: float = 0.0) -> None:
    """A log, last written `ago` seconds before now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    os.utime(path, (time.time() - ago, time.time() - ago))


def told(follow: Follow) -> list[tuple[str, str]]:
    """(run, kind) of what is new."""
    return [(n.run, n.kind) for n in follow.look()]


def test_what_is_new_is_told_once(tmp_path: Path) -> None:
    """First where each run stands; then a finding and the verdict; then nothing until something changes."""
    write(tmp_path / "a/train.log", FINE)
    write(tmp_path / "b/train.log", FINE)
    follow = Follow([tmp_path])
    assert told(follow) == [("a", "found"), ("b", "found")]
    assert told(follow) == []
    write(tmp_path / "b/train.log", FINE + BAD)
    news = follow.look()
    assert [(n.run, n.kind, n.severity) for n in news] == [("b", "finding", "error"), ("b", "verdict", "error")]
    assert news[0].as_json()["code"] == "NAN001"
    assert (news[0].step, news[1].fields) == (40, {"verdict": "failed", "was": "healthy"})
    write(tmp_path / "b/train.log", [*FINE, *BAD, "step=60 loss=nan"])
    assert told(follow) == []


def test_only_what_changed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that did not grow is not opened again."""
    for name in "ab":
        write(tmp_path / name / "train.log", FINE)
    follow = Follow([tmp_path])
    follow.look()
    opened = []
    from postmortem.following import follow as module

    read = module.read
    monkeypatch.setattr(module, "read", lambda files, *rest: [opened.append(files.name), read(files, *rest)][1])
    with (tmp_path / "a/train.log").open("a") as file:
        file.write("step=40 loss=0.02\n")
    follow.look()
    follow.look()
    assert opened == ["a"]


def test_a_run_that_ends(tmp_path: Path) -> None:
    """The crash is a finding, and the run has ended; the end is told once."""
    write(tmp_path / "a/train.log", FINE)
    follow = Follow([tmp_path])
    (found,) = follow.look()
    assert found.fields["ended"] == "running"
    write(tmp_path / "a/train.log", [*FINE, "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"])
    news = follow.look()
    assert [n.kind for n in news] == ["finding", "verdict", "ended"]
    assert news[-1].fields == {"ended": "out-of-memory"}
    assert told(follow) == []


def test_a_run_that_grows_did_not_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from its announced end it still runs while its file grows; silent for long, that is told, once."""
    lines = ["Training for 1000 steps", "max_steps=1000", *FINE]
    write(tmp_path / "a/train.log", lines)
    follow = Follow([tmp_path], silence=60)
    (found,) = follow.look()
    assert (found.fields["ended"], found.fields["findings"]) == ("running", [])
    later = time.time() + 120
    monkeypatch.setattr("postmortem.following.follow.time", SimpleNamespace(time=lambda: later))
    news = follow.look()
    assert [n.kind for n in news] == ["finding", "verdict", "silent"]
    assert "RUN002 silent-death" in news[0].message
    assert "nothing was written for 2 min" in news[2].message
    assert told(follow) == []
    write(tmp_path / "a/train.log", [*lines, "step=40 loss=0.02"], ago=-120)
    assert [n.kind for n in follow.look()] == ["withdrawn", "verdict", "goes-on"]


def test_checks_that_are_far_apart_are_no_pauses_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grew up to each check never paused, however rare the checks are; the silence comes in time."""
    begun = now = time.time()
    monkeypatch.setattr("postmortem.following.follow.time", SimpleNamespace(time=lambda: now))
    follow = Follow([tmp_path], silence=60)
    for i in range(4):
        now = begun + 50 * i
        write(tmp_path / "a/train.log", FINE[: 10 + i])
        os.utime(tmp_path / "a/train.log", (now, now))
        assert "silent" not in [n.kind for n in follow.look()]
    now = begun + 150 + 61.5
    (silent,) = [n for n in follow.look() if n.kind == "silent"]
    assert silent.message.startswith("nothing was written for 61 s: it hangs")


def test_a_pause_that_the_log_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check in it shows that it was one; it does not make a later silence come later."""
    begun = now = time.time()
    monkeypatch.setattr("postmortem.following.follow.time", SimpleNamespace(time=lambda: now))
    write(tmp_path / "a/train.log", FINE[:10])
    os.utime(tmp_path / "a/train.log", (begun, begun))
    follow = Follow([tmp_path], silence=60)
    for later in (0, 20, 40.5):
        now = begun + later
        follow.look()
    write(tmp_path / "a/train.log", FINE[:11])
    os.utime(tmp_path / "a/train.log", (begun + 45, begun + 45))
    now = begun + 50
    follow.look()
    now = begun + 106.5
    (silent,) = [n for n in follow.look() if n.kind == "silent"]
    assert silent.message.startswith("nothing was written for 61 s; the longest pause seen before was 40 s: it hangs")


def test_a_log_that_is_written_anew(tmp_path: Path) -> None:
    """Its steps went back: said, and what is found in the new one is new."""
    write(tmp_path / "a/train.log", FINE + BAD)
    follow = Follow([tmp_path])
    follow.look()
    write(tmp_path / "a/train.log", FINE[:20])
    assert [n.kind for n in follow.look()] == ["rewritten", "verdict"]
    write(tmp_path / "a/train.log", FINE[:20] + [f"step={i} loss=nan" for i in range(20, 30)])
    assert [n.kind for n in follow.look()] == ["finding", "verdict"]


def test_a_log_that_is_rotated(tmp_path: Path) -> None:
    """The older part under another name: nothing is lost, nothing is told twice."""
    write(tmp_path / "a/train.log", FINE + BAD)
    follow = Follow([tmp_path])
    follow.look()
    (tmp_path / "a/train.log").rename(tmp_path / "a/train.log.1")
    write(tmp_path / "a/train.log", [f"step={i} loss=nan" for i in range(60, 80)])
    assert "rewritten" not in [n.kind for n in follow.look()]
    assert told(follow) == []


def test_runs_come_and_go(tmp_path: Path) -> None:
    """An empty folder is watched; a run appears; it is gone after two looks without it; a root may vanish."""
    root = tmp_path / "runs"
    root.mkdir()
    follow = Follow([root])
    assert told(follow) == []
    write(root / "a/train.log", FINE)
    assert told(follow) == [("a", "found")]
    (root / "a/train.log").unlink()
    assert told(follow) == []
    assert told(follow) == [("a", "gone")]
    (root / "a").rmdir()
    root.rmdir()
    assert told(follow) == []


def test_a_file_that_vanishes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and the reading; the others are told all the same."""
    for name in "ab":
        write(tmp_path / name / "train.log", FINE)
    from postmortem.following import follow as module

    read = module.read

    def vanishing(files, *rest):
        (tmp_path / "a/train.log").unlink(missing_ok=True)
        return read(files, *rest)

    monkeypatch.setattr(module, "read", vanishing)
    follow = Follow([tmp_path])
    assert ("b", "found") in told(follow)


@pytest.fixture
def hook():
    """A server that answers POST -> (its URL, the bodies that it got, the answers that it gives)."""
    got: list[dict] = []
    codes = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(codes[0])
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret", got, codes
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_watched_from_the_command_line(tmp_path: Path, hook) -> None:
    """It prints, gives alerts by both ways of what came after the first look, and ends at Ctrl-C with exit code 0."""
    url, got, codes = hook
    codes[0] = 500
    runs = tmp_path / "runs"
    write(runs / "a/train.log", FINE)
    write(runs / "old/train.log", FINE + BAD, ago=9000)
    keep = tmp_path / "keep.py"
    keep.write_text("import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')")
    alerts = tmp_path / "alerts of mine.jsonl"
    command = f"{sys.executable} {keep} '{alerts}'"
    arguments = [runs, "--every", "0.2", "--format", "json", "--command", command, "--webhook", url]
    started = [sys.executable, "-m", "postmortem", "watch-logs", *map(str, arguments)]
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(100, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(e["event"], e["run"], e["verdict"]) for e in first] == [
            ("found", "a", "healthy"),
            ("found", "old", "failed"),
        ]
        write(runs / "a/train.log", FINE + BAD)
        then = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(e["event"], e["severity"]) for e in then] == [("finding", "error"), ("verdict", "error")]
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    finally:
        limit.cancel()
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert json.loads(alerts.read_text())["events"] == then
    assert [b["events"] for b in got] == [then]
    assert "NAN001 nan-onset" in got[0]["text"]
    assert said == [
        "postmortem: 2 runs; checking every 0.2 s, Ctrl-C to stop\n",
        "postmortem: the alert failed: webhook 127.0.0.1: HTTP 500\n",
    ]


def test_once(postmortem, tmp_path: Path) -> None:
    """One look, with the exit code of a scan."""
    write(tmp_path / "a/train.log", FINE + BAD)
    called = postmortem("watch-logs", tmp_path, "--once")
    assert called.code == 1
    assert "  a  found: failed" in called.out
    write(tmp_path / "a/train.log", FINE)
    assert postmortem("watch-logs", tmp_path, "--once").code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        ([".", "--once"], "no training log found"),
        ([".", "--once", "--command", "true"], "combined with --command"),
        ([".", "--command", "'"], "No closing quotation"),
        ([".", "--command", ""], "an empty command"),
        ([".", "--webhook", "file:///etc/passwd"], "not a URL that begins with http"),
    ],
)
def test_what_cannot_be_done_is_one_line(postmortem, tmp_path: Path, monkeypatch, options, words: str) -> None:
    """Exit code 2 before anything is watched."""
    monkeypatch.chdir(tmp_path)
    called = postmortem("watch-logs", *options)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert words in called.err


def test_an_alert_that_fails_is_said(tmp_path: Path) -> None:
    """A command that is not there, that fails, that hangs; a host that does not answer. No traceback, no secret."""
    from postmortem.following import alerts
    from postmortem.following.news import News

    news = [News(kind="finding", run="a", path="a", message="x")]
    assert alerts.Command.of("no-such-command").send(news) == "no-such-command: No such file or directory"
    assert alerts.Command.of("false").send(news) == "false: exit code 1"
    why = alerts.Webhook.of("http://127.0.0.1:9/secret").send(news)
    assert why is not None
    assert why.startswith("webhook 127.0.0.1: ")
    assert "secret" not in why
