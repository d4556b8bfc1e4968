"""`Run.refresh` gives the run as its files are now, and reads only what is new."""

from __future__ import annotations

import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto as Histogram
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.hparams import summary_v2 as hparams

import postmortem
from postmortem.core.run import Run
from postmortem.readers.csv_table import CsvTable
from postmortem.readers.tensorboard import event_file as event_reader
from postmortem.readers.text import TextReader
from postmortem.runs import kept
from tests.readers.tensorboard.test_tensorboard import scalar, tensor, write

EVENTS = "events.out.tfevents.1700000000.host.1.0"


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The text logs and tables that are read, and from where on event files are."""
    log: list[str] = []

    def noted(reader: type) -> None:
        original = reader.read
        monkeypatch.setattr(reader, "read", staticmethod(lambda path: log.append(path.name) or original(path)))

    noted(TextReader)
    noted(CsvTable)
    batches = event_reader.batches
    monkeypatch.setattr(
        event_reader, "batches", lambda stream, *rest: log.append(f"from {stream.tell()}") or batches(stream, *rest)
    )
    return log


def facts(run: Run) -> list[object]:
    """All that a run says, comparable: numbers by their bits."""
    points = [
        (s.source, s.name, s.points.tags, *(c.tobytes() for c in (s.points.code, s.points.step, s.points.value)))
        for s in run.streams
    ]
    times = [np.concatenate([s.points.wall_time, s.points.rank, s.segment]).tobytes() for s in run.streams]
    read = [repr(r) for r in (run.event_list, run.problems, run.sources, run.config, run.summary, run.ended)]
    return [run.name, run.path, points, times, *read, repr(run.notes), repr(run.skipped), run.step_axis]


def same(run: Run, path: Path) -> None:
    assert facts(run) == facts(postmortem.load(path))


def event_file(path: Path, steps: range) -> bytes:
    """Records of TensorBoard's writer: two scalars a step, and settings, texts and histograms among them."""
    events = []
    for i in steps:
        events += [scalar("loss", i, 3 - i / 10, 1.7e9 + i), scalar("lr", i, 0.1, 1.7e9 + i)]
        if i % 5 == 0:
            histogram = Histogram(num=3, sum_squares=i)
            text = TensorProto(dtype=7, string_val=[b"note"])
            events.append(tensor("note", i, text, "text" if i == steps[0] else ""))
            values = [Summary.Value(tag="grads/a.weight", histo=histogram), Summary.Value(tag="w", histo=histogram)]
            events.append(Event(wall_time=1.7e9 + i, step=i, summary=Summary(value=values)))
        if i % 10 == 7:
            events.append(Event(wall_time=1.7e9, summary=hparams.hparams_pb({f"width{i}": 8, "lr": i / 10})))
    return write(path, events)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> bytes:
    return event_file(tmp_path_factory.mktemp("events") / EVENTS, range(40))


def test_only_what_was_appended_is_read(records, tmp_path, read):
    """Of an event file the new records, also where the first reading met one that was being written."""
    path = tmp_path / EVENTS
    cut = len(records) // 2
    path.write_bytes(records[:cut])
    first = postmortem.load(tmp_path)
    before = facts(first)
    path.write_bytes(records)  # the same file: open("wb") keeps the inode
    second = first.refresh()
    start = first.problems[0].offset or cut
    assert read == ["from 0", f"from {start}"]
    assert 0 < start <= cut
    assert second.refresh().n_points == second.n_points > first.n_points
    assert len(read) == 2
    assert (facts(first), second.problems) == (before, [])
    same(second, tmp_path)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_is_what_load_reads(records, tmp_path_factory, data) -> None:
    """Whatever was written between two looks, and wherever bytes are damaged."""
    whole = bytearray(records)
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("run")
    path = folder / EVENTS
    ends = sorted(data.draw(st.lists(st.integers(1, len(whole)), min_size=2, max_size=5)))
    path.write_bytes(whole[: ends[0]])
    run = postmortem.load(folder)
    for before, end in pairwise(ends):
        with path.open("ab") as file:
            file.write(whole[before:end])
        run = run.refresh()
        same(run, folder)


@pytest.mark.parametrize("change", ["truncated", "replaced", "rewritten", "longer", "gone", "added"])
def test_what_did_not_only_grow_is_read_again(records, tmp_path, change, read):
    """Truncation, rotation (a new file under the name), other content of the same or a greater length."""
    path = tmp_path / "run" / EVENTS
    path.parent.mkdir()
    path.write_bytes(records)
    (path.parent / "train.log").write_text("step 1 loss 2\nstep 2 loss 1\n")
    run = postmortem.load(path.parent)
    other = event_file(tmp_path / EVENTS, range(100, 140))
    read.clear()
    if change == "truncated":
        os.truncate(path, len(records) // 3)
    elif change == "replaced":
        (tmp_path / "new").write_bytes(records + other)
        (tmp_path / "new").replace(path)
    elif change == "rewritten":
        times = path.stat()
        path.write_bytes(other[: len(records)])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "longer":
        path.write_bytes(other + records)
    elif change == "gone":
        path.unlink()
    else:
        path.with_name(EVENTS.replace(".0", ".1")).write_bytes(other)
    again = run.refresh()
    assert read == ([] if change == "gone" else ["from 0"])
    same(again, path.parent)


def test_files_that_did_not_change_are_not_read(tmp_path, read):
    """Of a folder with several logs only that which grew; texts and tables are read whole."""
    (tmp_path / "metrics.csv").write_text("step,loss\n1,2\n2,1\n")
    (tmp_path / "train.log").write_text("step 1 loss 2\nstep 2 loss 1\n")
    run = postmortem.load(tmp_path)
    read.clear()
    assert facts(run.refresh()) == facts(run)
    assert read == []
    with (tmp_path / "train.log").open("a") as file:
        file.write("step 3 loss nan\n")
    again = run.refresh()
    assert read == ["train.log"]
    same(again, tmp_path)


def test_a_relative_path_and_roles(tmp_path, monkeypatch):
    """What `load` was given counts again."""
    monkeypatch.chdir(tmp_path)
    Path("train.log").write_text("step 1 objx 2\nstep 2 objx 1\n")
    run = postmortem.load("train.log", roles={"objx": "loss"}).refresh()
    assert (run.path, run.roles["objx"]) == (Path("train.log"), "loss")


def test_the_sample_runs(sample_runs):
    """A refresh without any change is the same run, of every kind of source."""
    for folder in sorted(p for p in sample_runs.iterdir() if p.is_dir() and p.name != "__pycache__"):
        run = postmortem.load(folder)
        assert facts(run.refresh()) == facts(run)


def test_what_cannot_be_refreshed(tmp_path):
    """A run of a scan, and one whose files are gone."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.log").write_text("step 1 loss 2\nstep 2 loss 1\n")
    with pytest.raises(postmortem.UsageError, match=r"not made by load\(\)"):
        postmortem.scan(folder)[0].run.refresh()
    run = postmortem.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(postmortem.NotFoundError):
        run.refresh()


def test_in_another_process(tmp_path):
    """A run that was pickled reads its files anew."""
    (tmp_path / "train.log").write_text("step 1 loss 2\nstep 2 loss 1\n")
    run = pickle.loads(pickle.dumps(postmortem.load(tmp_path)))
    (tmp_path / "train.log").write_text("step 1 loss 2\nstep 2 loss 1\nstep 3 loss 1\n")
    same(run.refresh(), tmp_path)


def test_several_at_once(tmp_path):
    """Two refreshes of one run in threads wait for one another."""
    (tmp_path / "train.log").write_text("".join(f"step {i} loss {i}\n" for i in range(100)))
    run = postmortem.load(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        assert [facts(r) for r in pool.map(lambda _: run.refresh(), range(8))] == [facts(run)] * 8
    assert kept.current() is None
