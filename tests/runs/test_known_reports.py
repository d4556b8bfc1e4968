"""A report of an unchanged run is not made again, and none is kept once something changed that it depends on."""

from __future__ import annotations

import json
import os
import time

import pytest

from postmortem.core.model import Finding
from postmortem.runs import cache, stored_reading
from postmortem.runs import known_reports as known
from tests.runs.test_cache import same

ROWS = "".join(f"{i},{2 / (1 + i / 20):.4f},0.001\n" for i in range(60))
SCRIPT = """import argparse
p = argparse.ArgumentParser()
p.add_argument('--resume', help='checkpoint to resume from')
loss.backward()
"""


@pytest.fixture
def runs(tmp_path):
    """Two runs in folders, two in one folder, and a log that names its script elsewhere."""
    top = tmp_path / "all" / "runs"
    for name in ("a", "b"):
        (top / name).mkdir(parents=True)
        (top / name / "metrics.csv").write_text("step,loss,lr\n" + ROWS)
    (top / "c").mkdir()
    for name in ("one", "two"):
        (top / "c" / f"{name}.csv").write_text("step,loss,lr\n" + ROWS)
    (top / "d" / "logs").mkdir(parents=True)
    lines = "".join(f"step {i} loss {'nan' if i > 40 else 2 / (1 + i / 20)} lr 0.001\n" for i in range(60))
    (top / "d" / "logs" / "train.log").write_text("+ python train.py --lr 0.001\n" + lines)
    (top / "d" / "train.py").write_text(SCRIPT)
    return top


def scanned(postmortem, runs, *options: str):
    found = postmortem("scan", str(runs), "--format", "json", "-j", "1", *options)
    return json.loads(found.out)


def made_anew(monkeypatch) -> list[str]:
    """The names of the runs whose reports are made from now on."""
    made: list[str] = []
    reports_of = known.reports_of

    def watched(files, roots, shared, how, make):
        def make_and_tell(asked):
            made.append(asked.name)
            return make(asked)

        return reports_of(files, roots, shared, how, make_and_tell)

    monkeypatch.setattr(known, "reports_of", watched)
    return made


def test_unchanged_runs_are_not_judged_again(postmortem, folder, runs, monkeypatch):
    """The second scan makes no report, and prints the same as the first and as one without the cache."""
    first = scanned(postmortem, runs)
    made = made_anew(monkeypatch)
    assert scanned(postmortem, runs) == first
    assert made == []
    assert scanned(postmortem, runs, "--no-cache") == first
    assert len(first["runs"]) == 5


def _append(path, text):
    with path.open("a") as file:
        file.write(text)


CHANGES = {
    "log grows": (lambda runs: _append(runs / "a" / "metrics.csv", "60,nan,0.001\n61,nan,0.001\n"), ["a"]),
    "log replaced": (lambda runs: (runs / "a" / "metrics.csv").write_text("step,loss\n0,1\n1,nan\n"), ["a"]),
    "settings of the run": (lambda runs: (runs / "b" / "config.yaml").write_text("lr: 7\n"), ["b"]),
    "checkpoint": (lambda runs: (runs / "b" / "checkpoint-40.pt").write_bytes(b"damaged"), ["b"]),
    "checkpoint in a folder": (lambda runs: _saved(runs / "a" / "checkpoints" / "step_40"), ["a"]),
    "recipe beside": (lambda runs: (runs / "recipe.py").write_text(""), ["a", "b", "c/one", "c/two"]),
    "settings beside several": (lambda runs: (runs / "c" / "config.json").write_text("{}"), ["c/one", "c/two"]),
    "script of the log": (lambda runs: (runs / "d" / "train.py").write_text("loss.backward()\n"), ["d"]),
    "script goes": (lambda runs: (runs / "d" / "train.py").unlink(), ["d"]),
    "a new run": (lambda runs: _new_run(runs / "e"), ["e"]),
}


def _saved(folder):
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")


def _new_run(folder):
    folder.mkdir()
    (folder / "metrics.csv").write_text("step,loss,lr\n" + ROWS)


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_judged_again(postmortem, folder, runs, monkeypatch, change):
    """A change of whatever a report depends on has it made again: the scan is that without the cache."""
    scanned(postmortem, runs)
    act, expected = CHANGES[change]
    act(runs)
    made = made_anew(monkeypatch)
    found = scanned(postmortem, runs)
    assert sorted(made) == expected
    assert found == scanned(postmortem, runs, "--no-cache")


def test_options_are_a_part_of_it(postmortem, folder, runs):
    """Other detectors, options of detectors or roles are other reports."""
    for options in ((), ("--ignore", "NAN"), ("--select", "NAN001"), ("--role", "loss=accuracy")):
        for _ in range(2):
            assert scanned(postmortem, runs, *options) == scanned(postmortem, runs, "--no-cache", *options)


def test_a_running_training_is_judged_each_time(postmortem, folder, tmp_path, monkeypatch):
    """What it still is only the clock tells, and no file."""
    log = tmp_path / "runs" / "metrics.csv"
    log.parent.mkdir()
    now = time.time()
    log.write_text("step,loss,timestamp\n" + "".join(f"{i},{2 - i / 100},{now - 200 + i:.1f}\n" for i in range(200)))
    (first,) = scanned(postmortem, log.parent)["runs"]
    assert first["ended"] == "running"
    later = time.time() + 10_000
    monkeypatch.setattr(time, "time", lambda: later)
    (second,) = scanned(postmortem, log.parent)["runs"]
    assert second["ended"] != "running"


def test_a_damaged_entry_is_named_and_made_again(postmortem, folder, runs):
    """An entry that is not whole costs nothing but a line on stderr."""
    first = scanned(postmortem, runs)
    entries = list(folder.glob("*.report"))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-3] + b"xxx")
    again = postmortem("scan", str(runs), "--format", "json", "-j", "1")
    assert json.loads(again.out) == first
    assert again.err.count("damaged and not used") == len(entries)
    assert postmortem("scan", str(runs), "-j", "1").err == ""


def test_an_entry_of_another_form_is_made_again(postmortem, folder, runs):
    """A whole entry that holds no reports, as another program may write it, is damaged as well."""
    first = scanned(postmortem, runs)
    for entry in folder.glob("*.report"):
        entry.write_bytes(stored_reading.stored([1, 2, 3]))
    assert scanned(postmortem, runs) == first


def test_a_file_that_just_changed_is_not_kept(postmortem, folder, runs, monkeypatch):
    """Within the resolution of its times it may change again unseen."""
    monkeypatch.setattr(cache, "_SETTLED", 3.0)
    past = time.time() - 1000
    for file in runs.rglob("*"):
        os.utime(file, (past, past))
    scanned(postmortem, runs)  # the time of change of the inode is still new
    assert not list(folder.glob("*.report"))


def test_what_a_report_holds_survives(postmortem, folder, sample_runs):
    """Reports come back with the same types and values."""
    from postmortem import api

    for run in api.scan(sample_runs, keep=False):
        same(stored_reading.restored(stored_reading.stored([run])), [run])
        assert all(isinstance(f, Finding) for f in run.findings)
