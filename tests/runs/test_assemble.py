"""Putting the files of a run together."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

import postmortem
from postmortem.core.reading import Reading
from postmortem.readers.csv_table import CsvTable
from postmortem.readers.text import read_text
from postmortem.runs.assemble import read_runs
from postmortem.runs.claimed import Part, RunFiles

TABLE = "step,train_loss,lr\n" + "".join(
    f"{step},{2 - 0.01 * step if step < 57 else 'nan'},0.1\n" for step in range(90)
)
BAR = "Epoch 1 train_loss: 1.70\nEpoch 2 train_loss: 1.40\nEpoch 3 train_loss: nan val_acc: 0.2\n"
CRASH = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    fit()\nValueError: no more data\n'
)


def test_means_of_epochs_do_not_stand_among_the_steps_of_a_table(tmp_path: Path) -> None:
    """What a text prints by epoch is dropped where a table has it by step, and counted; what only the text has
    stays."""
    (tmp_path / "metrics.csv").write_text(TABLE)
    (tmp_path / "train.out").write_text(BAR)
    run = postmortem.load(tmp_path)
    losses = run.frame.query("tag == 'train_loss'")
    assert sorted(losses["step"]) == list(range(90))
    assert "val_acc" in set(run.frame["tag"])
    assert run.skipped["numbers without a step that another source has with a step"] == 3


def test_a_crash_after_means_of_epochs_has_no_step_of_the_table(tmp_path: Path) -> None:
    """An event stands at no step where its text counts epochs and the table counts steps."""
    (tmp_path / "metrics.csv").write_text(TABLE)
    (tmp_path / "train.out").write_text(BAR + CRASH)
    run = postmortem.load(tmp_path)
    assert [event.step for event in run.event_list] == [None]


def test_means_of_epochs_are_ordered_by_the_steps_of_another_output(tmp_path: Path) -> None:
    """Of two outputs, one counts steps and names the epochs: the means of the other stand at their epochs, and count as
    logged after the last step of each."""
    losses = [(e, i, "nan" if e * 40 + i > 63 else 0.7 - e / 9) for e in range(3) for i in range(1, 41)]
    bar = "".join(f"ep {e}: {i}/40 [00:01<00:02, 9it/s, bce={loss}]\n" for e, i, loss in losses)
    (tmp_path / "job.err").write_text(bar)
    means = "".join(f"epoch {e} finished: mean bce {0.6 if e < 1 else 'nan'}\n" for e in range(3))
    (tmp_path / "job.out").write_text(means)
    report = postmortem.scan(tmp_path)
    frame = report.runs[0].run.frame
    assert frame.query("tag == 'mean bce'")["step"].tolist() == [0, 1, 2]
    root = next(f for f in report.runs[0].findings if f.because_of is None)
    assert (root.tag, root.step) == ("bce", 64)


def test_means_of_epochs_alone_are_kept(tmp_path: Path) -> None:
    """A text without another source keeps its epochs as steps."""
    (tmp_path / "train.out").write_text(BAR)
    assert sorted(postmortem.load(tmp_path).frame.query("tag == 'train_loss'")["step"]) == [1, 2, 3]


def test_a_crash_between_two_prints_is_placed_where_the_table_ends(tmp_path: Path) -> None:
    """A text that prints every 50 steps places its crash at the last step of the table, unless that is of another
    attempt."""
    prints = "".join(f"step {step} train_loss {2 - 0.01 * step}\n" for step in (0, 50))
    for name, rows in (("near", 90), ("far", 400)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.csv").write_text(
            "step,train_loss\n" + "".join(f"{step},{2 - 0.01 * step}\n" for step in range(rows))
        )
        (folder / "train.out").write_text(prints + CRASH)
    assert [event.step for event in postmortem.load(tmp_path / "near").event_list] == [89]
    assert [event.step for event in postmortem.load(tmp_path / "far").event_list] == [50]


def test_an_output_that_another_reader_reads_is_one_alike(tmp_path: Path) -> None:
    """What counts is that the reader says its files are output, not its name: its failure goes where the table ends."""

    class Console:
        """Reads a made-up output."""

        kind = "console"
        content = "output"

        @staticmethod
        def read(path: Path) -> Reading:
            return replace(read_text(path), source="console")

    table, printed = tmp_path / "metrics.csv", tmp_path / "train.out"
    table.write_text(TABLE)
    printed.write_text("step 0 train_loss 2.0\nstep 50 train_loss 1.5\n" + CRASH)
    parts = [Part(table, CsvTable), Part(printed, Console)]  # type: ignore[arg-type]
    (run,) = read_runs(RunFiles("exp", tmp_path, parts))
    assert {s.source for s in run.streams} == {"csv", "console"}
    assert [event.step for event in run.event_list] == [89]


def test_a_copy_of_a_file_is_no_restart(tmp_path: Path) -> None:
    """A byte-identical copy of an event file or table beside it is read once, and `notes` says so; another file of the
    same size is read."""
    sample = Path(__file__).parents[2] / "sample_runs" / "nan-log-of-zero"
    (original,) = sample.glob("events.*")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / original.name).write_bytes(original.read_bytes())
    points = postmortem.load(alone).n_points
    (alone / original.name.replace("4242", "4243")).write_bytes(original.read_bytes())
    run = postmortem.load(alone)
    assert run.n_points == points
    assert set(run.frame["segment"]) == {0}
    assert len([note for note in run.notes if "a copy of" in note]) == 1
    changed = bytearray(original.read_bytes())
    changed[-1] ^= 1
    (alone / original.name.replace("4242", "4244")).write_bytes(changed)
    assert postmortem.load(alone).n_points > points


def test_a_crash_in_an_err_file_stands_at_the_last_step_of_the_out_file(tmp_path: Path) -> None:
    """A file of errors has no steps of its own; notes in it have none either, as nobody knows when they were
    written."""
    (tmp_path / "job_12.out").write_text("".join(f"step {step} train_loss {2 - 0.01 * step}\n" for step in range(70)))
    (tmp_path / "job_12.err").write_text("The grad norm is nan. Skipping updating the model.\n" + CRASH)
    run = postmortem.load(tmp_path)
    assert {event.kind: event.step for event in run.event_list} == {"generic-exception": 69, "update-skipped": None}


def test_times_place_what_an_err_file_says(tmp_path: Path) -> None:
    """Both files write with the same clock: an event belongs to the last step before its time."""
    times = [f"2026-11-20 12:00:{n:02d},000 - INFO - " for n in range(60)]
    (tmp_path / "job_12.out").write_text(
        "".join(f"{time}step {n} train_loss {2 - 0.01 * n}\n" for n, time in enumerate(times))
    )
    (tmp_path / "job_12.err").write_text(
        times[20].replace("INFO", "WARNING") + "The grad norm is nan. Skipping updating the model.\n"
    )
    (event,) = postmortem.load(tmp_path).event_list
    assert event.step == 20


@pytest.mark.parametrize(
    ("every", "ago", "ended"),
    [(0.1, 100, "running"), (0.1, 200, "unknown"), (60, 200, "running"), (60, 400, "unknown")],
)
def test_a_run_that_fell_silent_is_over_the_sooner_the_faster_it_logged(
    tmp_path: Path, every: float, ago: float, ended: str
) -> None:
    """A log without an end may still be running: longer where its rows are minutes apart than where they are ten a
    second."""
    last = time.time() - ago
    rows = "".join(f"{step},{2 - 0.01 * step},{last - every * (99 - step)}\n" for step in range(100))
    (tmp_path / "metrics.csv").write_text("step,loss,wall_time\n" + rows)
    assert postmortem.load(tmp_path).ended == ended
