"""What `postmortem run` noted of a run is part of its report: how it ended, the fault, the culprit it named."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import postmortem
from postmortem.attach.own_logs import log_of
from postmortem.checkpoints.histories import note, note_culprit, note_log, note_watch
from postmortem.core.report import RunReport

CULPRIT = {"cause": "forward-op", "phase": "forward", "module": "head", "op": "log", "file": "/x/train.py", "line": 24}
ANSWER = {
    "culprit": {**CULPRIT, "step": 32, "established": "cured"},
    "fidelity": {"ok": True, "note": "the program itself was watched", "reasons": []},
    "next": ["clamp the input of log"],
}
STOPPED = {"what": "parameter", "step": 32, "pid": 7, "stopped": True}


def kept(at: Path, *, rows: int = 33, name: str = "20260101-120000", **noted: object) -> Path:
    """The history of a training that has just run, and what is noted of its end."""
    history = at / "postmortem-report" / "history" / name
    history.mkdir(parents=True)
    now = time.time() - rows
    lines = ({"step": k, "tick": k, "time": now + k, "loss": 0.7 - 0.003 * k} for k in range(rows))
    (history / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    note_watch(history, None, pid=7, ended=now)
    if noted:
        note(history, log=None, time=time.time(), **noted)
    return history


def named(at: Path, history: Path) -> None:
    """The answer that was saved with it."""
    saved = at / "postmortem-report" / "20260101-120100"
    saved.mkdir()
    (saved / "culprit.json").write_text(json.dumps(ANSWER))
    note_culprit(history, saved / "culprit.json")


def report(at: Path) -> RunReport:
    """Of the one run there."""
    (run,) = postmortem.scan(at).runs
    return run


def test_a_stopped_run_failed_with_the_culprit_that_was_named(tmp_path):
    """--stop ended the program before a number of its log was bad: the numbers alone are those of a healthy run."""
    named(tmp_path, kept(tmp_path, code=1, fault=STOPPED))
    run = report(tmp_path)
    assert run.verdict == "failed"
    assert run.ended == "interrupted"
    (finding,) = [f for f in run.findings if f.severity == "error"]
    assert finding.step == 32
    assert "--stop ended the program" in finding.message
    assert run.culprit is not None
    assert (run.culprit.op, run.culprit.module, run.culprit.line, run.culprit.established) == (
        "log",
        "head",
        24,
        "cured",
    )
    assert run.diagnosis is not None
    assert run.diagnosis.next == ("clamp the input of log",)
    assert "culprit" in str(run)


def test_a_fault_without_an_answer_is_a_failure_too(tmp_path):
    """No culprit was named, or its file is gone or of another form: the fault was seen all the same."""
    history = kept(tmp_path, code=1, fault=STOPPED)
    assert (report(tmp_path).verdict, report(tmp_path).culprit) == ("failed", None)
    named(tmp_path, history)
    saved = tmp_path / "postmortem-report" / "20260101-120100" / "culprit.json"
    for text in ("", "[]", '{"culprit": {"cause": 3}}', '{"culprit": {"cause": "a", "phase": "forward", "fixes": 7}}'):
        saved.write_text(text)
        assert (report(tmp_path).verdict, report(tmp_path).culprit) == ("failed", None)


@pytest.mark.parametrize(
    ("code", "ended", "verdict"),
    [
        (0, "completed", "healthy"),
        (1, "crashed", "failed"),
        (-9, "killed", "failed"),
        (-2, "interrupted", "healthy"),
        (130, "interrupted", "healthy"),
    ],
)
def test_a_run_that_has_ended_does_not_run(tmp_path, code, ended, verdict):
    """Its last row is a second old, and its exit code is noted."""
    kept(tmp_path, code=code, fault=None)
    assert (report(tmp_path).ended, report(tmp_path).verdict) == (ended, verdict)


def test_a_run_of_which_nothing_is_noted_may_still_run(tmp_path):
    """The watch ends at a fault, and the program goes on: that the watch has ended says nothing of the program."""
    kept(tmp_path)
    assert report(tmp_path).ended == "running"


def test_what_is_logged_later_is_not_of_the_noted_end(tmp_path):
    """The same log was written again without a watch: neither the end nor the fault is that of what it holds."""
    history = kept(tmp_path, code=1, fault=STOPPED)
    note_log(history, tmp_path / "train.log")
    (tmp_path / "train.log").write_text("".join(f"step {k} loss {0.7 - 0.003 * k:.4f}\n" for k in range(33)))
    assert report(tmp_path).verdict == "failed"
    later = time.time() + 900
    os.utime(tmp_path / "train.log", (later, later))
    assert report(tmp_path).verdict == "healthy"


def test_a_history_joins_the_log_in_a_folder_of_its_own(tmp_path):
    """What the program printed lies above, and is of the same run as the log that is noted."""
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "metrics.csv").write_text("step,loss\n" + "".join(f"{k},{0.7 - 0.003 * k}\n" for k in range(33)))
    (tmp_path / "out.log").write_text("".join(f"step {k} loss {0.7 - 0.003 * k:.4f}\n" for k in range(33)))
    before = len(postmortem.scan(tmp_path).runs)
    note_log(kept(tmp_path, code=0, fault=None), tmp_path / "tb")
    assert len(postmortem.scan(tmp_path).runs) == before


def test_a_history_is_no_log_that_the_program_wrote(tmp_path, monkeypatch):
    """It would be found to follow itself, numbered from 0, where the program's log counts from 1."""
    monkeypatch.chdir(tmp_path)
    since = time.time()
    kept(tmp_path, rows=20)
    (tmp_path / "out").write_text("loading\n")
    assert not [view for view in log_of(since) if view.of("loss")]
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{k + 1},{0.7 - 0.003 * k}\n" for k in range(20)))
    (view,) = [view for view in log_of(since) if view.of("loss")]
    assert {s.step[0] for s in view.of("loss")} == {1}


def test_a_report_prints_no_replay_that_was_not_asked_for(tmp_path, postmortem):
    """The culprit that a watch had named is in the page; only --replay prints what a replay found."""
    named(tmp_path, kept(tmp_path, code=1, fault=STOPPED))
    called = postmortem("report", tmp_path, "-o", tmp_path / "r.html")
    assert (called.code, called.out) == (0, "")
    assert "operator log" in (tmp_path / "r.html").read_text()
