"""How far a long operation is: what readers report, and the line on a terminal."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from postmortem import api
from postmortem.cli import replay as replay_command
from postmortem.cli import shown_progress
from postmortem.core.progress import listening, progressed
from postmortem.readers.text.lines import blocks
from postmortem.runs import workers


def _text(path: Path) -> None:
    with path.with_name("train.log").open("w") as file:
        for i in range(30_000):
            file.write(f"step {i} loss {3 / (1 + 0.1 * i):.6f}\n")


def _table(path: Path) -> None:
    with path.with_name("metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("step", "loss"), *((i, 1 / (1 + i)) for i in range(20_000))])


def _lines(path: Path) -> None:
    with path.with_name("metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": i, "loss": 1 / (1 + i)}) + "\n" for i in range(20_000))


@pytest.mark.parametrize("write", [_text, _table, _lines])
def test_a_large_file(tmp_path, monkeypatch, write) -> None:
    """While one file is read, its name and how much of it is read are reported, in ascending order."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 17)
    write(tmp_path / "any")
    told: list[tuple[str, int, int]] = []
    with listening(lambda *state: told.append(state)):
        api.load(tmp_path)
    names, done, total = zip(*[state for state in told if state[2]], strict=True)
    assert {Path(name).parent for name in names} == {tmp_path}
    assert len(set(total)) == 1
    assert len(done) > 1
    assert list(done) == sorted(done)
    assert 0 < done[0] < done[-1] <= total[0]
    assert done[-1] > total[0] / 2


def test_nobody_listens_outside() -> None:
    """What is reported outside of `listening` goes nowhere; a listener inside another replaces it for a while."""
    outer: list[str] = []
    inner: list[str] = []
    progressed("nothing", 1)
    with listening(lambda what, *_: outer.append(what)):
        with listening(lambda what, *_: inner.append(what)):
            progressed("b", 1)
        progressed("c", 1)
    progressed("d", 1)
    assert (outer, inner) == (["c"], ["b"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_terminal_shows_it(tmp_path, monkeypatch, postmortem, jobs) -> None:
    """On a terminal: the search, the runs, the file; the line is cleared at the end. Nothing where stderr is none."""
    for i in range(2):
        (tmp_path / f"run{i}").mkdir()
        _text(tmp_path / f"run{i}" / "any")
    for i in range(130):
        (tmp_path / f"notes{i}.md").write_text("nothing\n")
    piped = postmortem("scan", tmp_path, "--jobs", jobs, "--no-cache")
    assert piped.err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(shown_progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(shown_progress, "_PAUSE", 0.0)
    monkeypatch.setattr(workers, "_REPORTED_SECONDS", 0.0)
    monkeypatch.setattr(blocks, "BLOCK", 1 << 17)
    monkeypatch.delenv("TERM", raising=False)
    shown = postmortem("scan", tmp_path, "--jobs", jobs, "--no-cache")
    assert shown.out == piped.out
    states = shown.err.split("\r\x1b[K")
    assert "looking for logs: 64 files, " in shown.err
    assert any(state.startswith("[") and "train.log: " in state and state.endswith(" %") for state in states)
    assert "[2/2] " in shown.err or "[1/2] " in shown.err
    assert states[-1] == ""


def test_where_nothing_can_be_redrawn_there_is_a_line_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay that is piped takes minutes, and is not silent."""
    now = 0.0
    monkeypatch.setattr(replay_command.time, "monotonic", lambda: now)
    show = replay_command._ticks()
    for second in range(100):
        now = float(second)
        show(10 * max(0, second - 30), 5 * second if second > 30 else None)
    assert capsys.readouterr().err.splitlines() == [
        "postmortem: no optimizer step yet",
        *(f"postmortem: {10 * s - 300} optimizer steps, logged step {5 * s}" for s in (40, 60, 80)),
    ]
