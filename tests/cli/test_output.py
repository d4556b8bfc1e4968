"""Where a report is written, and that a report is never read as a run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from postmortem.reporters import REPORTERS

FORMATS = [reporter.name for reporter in REPORTERS]


@pytest.fixture
def runs(tmp_path, sample_runs):
    """A folder with two runs."""
    for name in ("restart", "killed"):
        shutil.copytree(sample_runs / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.mark.parametrize("scanned", ["", "killed"], ids=["two runs", "one run"])
@pytest.mark.parametrize("format_", FORMATS)
def test_own_reports_are_no_runs(postmortem, runs, format_, scanned):
    """Whatever its format and name, a report beside the runs is not read by the next scan, and may be replaced."""
    before = postmortem("scan", runs, "--format", "jsonl").out
    for name in ("report.log", "report.txt", "report.out", "metrics.json", "history.jsonl"):
        for _ in range(2):
            called = postmortem("scan", runs / scanned, "-v", "--format", format_, "-o", runs / name)
            assert called.code in (0, 1, 3), called.err
    assert postmortem("scan", runs, "--format", "jsonl").out == before


def test_a_report_at_the_start_of_a_log_hides_nothing(postmortem, runs, tmp_path):
    """A script that prints a report and then trains writes a log."""
    page = postmortem("scan", runs / "killed").out
    log = tmp_path / "train.log"
    log.write_text(page + "".join(f"step {i} loss {2 - i / 100}\n" for i in range(50)))
    assert "text (" in postmortem("scan", log).out


def test_a_log_is_not_replaced(postmortem, runs):
    """The output may not be a file that the scan reads."""
    log = next((runs / "killed").glob("slurm-*.out"))
    content = log.read_bytes()
    for command, path in (("scan", runs), ("scan", log), ("report", runs)):
        called = postmortem(command, path, "-o", log)
        assert called.code == 2
        assert "is a log that this command reads" in called.err
        assert log.read_bytes() == content


def test_an_old_report_stays_if_the_new_one_cannot_be_written(postmortem, runs, tmp_path, monkeypatch):
    """A full disk costs the new report, not the old one, and leaves nothing else behind."""
    report = tmp_path / "out" / "report.txt"
    report.parent.mkdir()
    report.write_text("old")
    report.chmod(0o640)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        called = postmortem("scan", runs, "-o", report)
    assert called.code == 2
    assert "No space left on device" in called.err
    assert report.read_text() == "old"
    assert os.listdir(report.parent) == ["report.txt"]
    postmortem("scan", runs, "-o", report)
    assert "2 runs" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "command", ["rules", "explain nan-onset", "explain diverged", "explain cuda-oom", "show killed"]
)
def test_text_keeps_to_the_width(postmortem, runs, monkeypatch, command, width):
    """The lines of every page end at COLUMNS, in a pipe as well, but for words and paths that are longer."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(runs)
    printed = postmortem(*command.split()).out.splitlines()
    too_long = [line for line in printed if len(line) > width]
    assert len(printed) > 5
    assert [line for line in too_long if len(line.split()) > 1] == []


def test_rules_are_whole_sentences(postmortem):
    """What a rule finds is not cut in the middle of its sentence."""
    lines = postmortem("rules", "--format", "json").out
    for rule in json.loads(lines):
        assert rule["summary"].endswith((".", ":")), rule
