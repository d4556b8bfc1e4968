"""One training is one run: what `postmortem run` kept of it is joined with the log that the training wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem.checkpoints.histories import history_of, note_log, noted_log
from postmortem.runs.group import discover

ROWS = "".join(f'{{"step": {k}, "tick": {k}, "loss": {3 / (k + 1):.4f}}}\n' for k in range(30))
LOG = "".join(f"step {k} loss {3 / (k + 1):.4f}\n" for k in range(30))


def kept(at: Path, name: str, log: str | None = "", training: str = "") -> Path:
    """A history below `at`, noted to be of a log: none if None; nothing is noted if ""."""
    history = at / "postmortem-report" / "history" / name
    (history / training).mkdir(parents=True)
    (history / training / "history.jsonl").write_text(ROWS)
    if log != "":
        note_log(history, at / log if log is not None else None)
    return history


def runs(root: Path) -> dict[str, list[str]]:
    """Name of each run below `root` -> its files."""
    return {r.name: sorted(p.path.relative_to(root).as_posix() for p in r.parts) for r in discover([root])[0]}


@pytest.fixture
def exp(tmp_path: Path) -> Path:
    """The folder in which a program was started."""
    (tmp_path / "exp").mkdir()
    return tmp_path / "exp"


@pytest.mark.parametrize("log", ["train.log", "logs/a.log", "runs/exp1/metrics.csv"])
@pytest.mark.parametrize("noted", [True, False])
def test_a_history_joins_its_log(exp, log, noted):
    """The log that is noted, or the only one below the folder of the program, wherever it lies."""
    (exp / log).parent.mkdir(parents=True, exist_ok=True)
    (exp / log).write_text(LOG if log.endswith(".log") else "step,loss\n" + "".join(f"{k},2\n" for k in range(30)))
    kept(exp, "20260101-120000", log if noted else "")
    (files,) = runs(exp).values()
    assert files == sorted([log, "postmortem-report/history/20260101-120000/history.jsonl"])


def test_a_history_without_a_log_is_the_run(exp):
    """It has the name of the folder of the program; with several, also their own; none joins a log of another one."""
    first = kept(exp, "20260101-120000", None)
    assert runs(exp).keys() == {"exp"}
    assert runs(exp.parent).keys() == {"exp"}
    kept(exp, "20260102-120000", None)
    assert runs(exp).keys() == {"exp/20260101-120000", "exp/20260102-120000"}
    (exp / "old.log").write_text(LOG)
    assert len(runs(exp)) == 3
    assert runs(first).keys() == {"20260101-120000"}


def test_the_newest_history_is_of_what_a_log_holds(exp):
    """The same log was written twice: the first training is a run of its own."""
    (exp / "train.log").write_text(LOG)
    for name in ("20260101-120000", "20260102-120000"):
        kept(exp, name, "train.log")
    found = runs(exp)
    assert len(found) == 2
    assert sorted(map(len, found.values())) == [1, 2]
    joined = next(files for files in found.values() if len(files) == 2)
    assert joined == ["postmortem-report/history/20260102-120000/history.jsonl", "train.log"]


def test_one_of_several_logs(exp):
    """Where it is noted, the history joins that one; where not, none; that of a second training joins none."""
    for name in ("a.log", "b.log"):
        (exp / name).write_text(LOG)
    history = kept(exp, "20260101-120000", "b.log")
    assert sorted(map(len, runs(exp).values())) == [1, 2]
    (exp / "sub").mkdir()
    (exp / "sub" / "metrics.csv").write_text("step,loss\n1,2\n2,2\n")
    note_log(history, exp / "sub")
    joined = next(files for files in runs(exp).values() if len(files) == 2)
    assert joined == ["postmortem-report/history/20260101-120000/history.jsonl", "sub/metrics.csv"]
    (exp / "sub" / "metrics.csv").unlink()
    note_log(history, None)
    assert len(runs(exp)) == 3
    kept(exp, "20260103-120000", training="training-2")
    assert "exp/20260103-120000/training-2" in runs(exp)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"log": 3', "3", "null"])
def test_a_note_that_is_damaged(tmp_path, text):
    """Counts as none."""
    (tmp_path / "log.json").write_text(text)
    assert noted_log(tmp_path) == (False, None)


def test_what_is_no_history():
    """A folder of the same name elsewhere."""
    assert history_of(Path("history/a/history.jsonl")) is None
    assert history_of(Path("x/postmortem-report/history/a/b/c")) == (Path("x/postmortem-report/history/a"), Path("x"))
