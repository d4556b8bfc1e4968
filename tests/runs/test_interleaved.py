"""Several programs whose rows alternate in one text log."""

from __future__ import annotations

import numpy as np
import pytest

import postmortem
from postmortem.core.errors import UsageError


def rows_of(seed: int, first: int = 0, n: int = 120, every: int = 10) -> list[str]:
    noise = np.random.default_rng(seed).normal(0, 0.02, n)
    values = (1 + seed) * np.exp(-np.arange(n) / 40) + 0.5 + noise
    return [f"step {first + i * every} loss {value:.4f}\n" for i, value in enumerate(values)]


def alternating(*programs: list[str], head: int, seed: int = 7) -> list[str]:
    """The first `head` rows of the first program, then the rows of all in random turns."""
    waiting = [list(rows) for rows in programs]
    out = [waiting[0].pop(0) for _ in range(head)]
    random = np.random.default_rng(seed)
    while any(waiting):
        rows = waiting[random.choice([k for k, rows in enumerate(waiting) if rows])]
        out.append(rows.pop(0))
    return out


@pytest.mark.parametrize("count", [2, 3])
def test_programs_that_write_into_one_file_are_runs_of_their_own(tmp_path, count):
    """Each goes on at its own next step: that is no restart."""
    programs = [rows_of(k) for k in range(count)]
    rows = programs[0][:60]
    rows += alternating(programs[0][60:], *([p[:40] for p in programs[1:2]]), head=8)
    if count == 3:
        rows += alternating(programs[1][40:], programs[2], head=20)
    (tmp_path / "train.log").write_text("".join(rows))
    report = postmortem.scan(tmp_path)
    assert len(report) == count
    assert len({run.name for run in report}) == count
    assert all(run.verdict == "healthy" for run in report)
    lengths = sorted(len(run.run.frame) for run in report)
    assert sum(lengths) == len(rows)
    assert any("told apart by their steps" in note for note in report[0].notes)
    with pytest.raises(UsageError, match="programs that wrote at the same time"):
        postmortem.load(tmp_path)


def test_what_ended_one_program_is_not_said_of_the_other(tmp_path):
    """A traceback after the last row of a program that logs no more."""
    long, short = rows_of(0), rows_of(1, n=60)
    rows = [*long[:30], *(row for pair in zip(short, long[30:90], strict=True) for row in pair)]
    crash = ["Traceback (most recent call last):\n", '  File "train.py", line 3, in <module>\n', "ValueError: no\n"]
    rows.pop()  # so that the traceback follows the row of the program that raised it
    (tmp_path / "train.log").write_text("".join([*rows, *crash, long[89], *long[90:]]))
    report = postmortem.scan(tmp_path)
    assert sorted((run.last_step, run.verdict) for run in report) == [(590, "failed"), (1190, "healthy")]


@pytest.mark.parametrize(
    "rows",
    [
        [*rows_of(0)[:90], *rows_of(0)[60:], *rows_of(0)[100:]],
        [row for pair in zip(rows_of(0), rows_of(1), strict=True) for row in pair],
        alternating(rows_of(0), rows_of(1), head=1, seed=1)[:40],
        [row for k in range(12) for row in rows_of(k, n=20)],
    ],
    ids=["restarts", "ranks in step", "ranks a step apart", "attempts from the start"],
)
def test_one_program_stays_one_run(tmp_path, rows):
    """Restarts, ranks whose rows alternate, and many short attempts in one log."""
    (tmp_path / "train.log").write_text("".join(rows))
    assert len(postmortem.scan(tmp_path)) == 1
