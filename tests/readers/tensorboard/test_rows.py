"""Rows of scalars are read as the obvious reader reads them, also in damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto

import postmortem.readers.tensorboard.event_file as reader
from postmortem.readers.shared.damage import MOST_REPORTED
from postmortem.readers.tensorboard import TensorBoard, long_row, row_layout, rows, tfrecord
from tests.readers.tensorboard.slow_reader import read_slowly
from tests.readers.tensorboard.test_tensorboard import NAME, scalar, tensor, write
from tests.readers.tensorboard.test_tensorboard import rows as points_of

MANY = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TAGS = ["loss", "lr", "grad_norm", "loss/layer.0", "loss/layer.1", "ß"]


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test learns its rows itself."""
    monkeypatch.setattr(reader, "_LAYOUTS", rows.RowLayouts({}))


@st.composite
def training_logs(draw: st.DrawFn) -> list[Event]:
    """Steps of a loop with the same tags each, some steps with more of them or with blobs, restarts and other loops."""
    events = [Event(wall_time=1.7e9, file_version="brain.Event:2")]
    for _ in range(draw(st.integers(1, 3))):
        tags = draw(st.lists(st.sampled_from(TAGS), min_size=1, max_size=5, unique=True))
        typed = draw(st.sampled_from(["none", "all", "some"]))
        extra = draw(st.sampled_from([0, 3, 7]))
        first = draw(st.sampled_from([0, 1, 100, 125, 16380, 2**34, -5]))
        for step in range(first, first + draw(st.sampled_from([1, 2, 20, 60]))):
            for j, tag in enumerate(tags):
                value = float(np.float32(1 / (step % 1000 + j + 1)))
                as_tensor = typed == "all" or (typed == "some" and j % 2)
                proto = TensorProto(dtype=1 + j % 2, **{("float_val", "double_val")[j % 2]: [value]})  # type: ignore[arg-type]
                events.append(
                    tensor(tag, step, proto, "scalars") if as_tensor else scalar(tag, step, value, 1.7e9 + step)
                )
            if extra and step % extra == 0:
                image = Summary.Value(tag="image", image=Summary.Image(encoded_image_string=bytes(step % 700)))
                events.append(Event(wall_time=1.7e9, step=step, summary=Summary(value=[image])))
                events.append(scalar("val/loss", step, 2.0))
    return events


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with up to four places flipped, zeroed, cut out, filled in or repeated."""
    whole = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        at, size = draw(st.integers(0, max(0, len(whole) - 1))), draw(st.integers(1, 120))
        kind = draw(st.sampled_from(["flip", "zero", "remove", "insert", "repeat", "cut"]))
        if kind == "flip":
            whole[at : at + 1] = bytes([whole[at] ^ 1 << draw(st.integers(0, 7))]) if whole else b""
        elif kind == "zero":
            whole[at : at + size] = bytes(len(whole[at : at + size]))
        elif kind == "remove":
            del whole[at : at + size]
        elif kind == "insert":
            whole[at:at] = draw(st.binary(min_size=1, max_size=40))
        elif kind == "repeat":
            whole[at:at] = whole[at : at + size * 5]
        else:
            del whole[max(1, at) :]
    return bytes(whole)


@MANY
@given(st.data())
def test_rows_are_read_as_record_by_record(tmp_path: Path, data: st.DataObject) -> None:
    """Points and places of damage are those of the obvious reader: for any rows, damage, and size of the pieces."""
    whole = data.draw(damaged(write(tmp_path / NAME, data.draw(training_logs()))))
    (tmp_path / NAME).write_bytes(whole)
    expected, damage = read_slowly(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "PIECE", data.draw(st.sampled_from([1 << 20, 5000, 700, 90])))
        patch.setattr(tfrecord, "SINGLE", data.draw(st.sampled_from([tfrecord.SINGLE, 0])))
        patch.setattr(row_layout, "BLOCK", data.draw(st.sampled_from([row_layout.BLOCK, 1000])))
        patch.setattr(rows, "CREDIT", data.draw(st.sampled_from([rows.CREDIT, 0, 3])))
        reading = TensorBoard.read(tmp_path / NAME)
        again = TensorBoard.read(tmp_path / NAME)
    assert repr(points_of(reading.points)) == repr(expected)
    assert repr(points_of(again.points)) == repr(expected)
    if expected and len(damage) <= MOST_REPORTED:
        assert [(p.offset, p.lost) for p in reading.problems] == [(a, f"{b - a} bytes") for a, b in damage]


@MANY
@given(where=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_costs_one_record(tmp_path: Path, where: int, bit: int) -> None:
    """The one checksum over all rows finds the record with a flipped bit, wherever it is."""
    events = [scalar(tag, step, 1 / (step + 1)) for step in range(60) for tag in TAGS]
    whole = bytearray(write(tmp_path / NAME, events))
    intact = points_of(TensorBoard.read(tmp_path / NAME).points)
    where %= len(whole)
    whole[where] ^= 1 << bit
    (tmp_path / NAME).write_bytes(whole)
    reading = TensorBoard.read(tmp_path / NAME)
    hit = int(np.searchsorted(np.cumsum([len(e.SerializeToString()) + 16 for e in events]), where, side="right"))
    assert points_of(reading.points) == intact[:hit] + intact[hit + 1 :]
    assert len(reading.problems) == 1


def test_what_is_learned_in_one_run_serves_another(tmp_path: Path) -> None:
    """Rows of one run do not hide the longer or shorter rows of the next, whatever they have in common."""
    for name, tags in (("a", TAGS[:2]), ("b", TAGS), ("c", TAGS[1:4]), ("d", TAGS[:5]), ("e", TAGS[::-1])):
        (tmp_path / name).mkdir()
        whole = write(tmp_path / name / NAME, [scalar(tag, step, step / 7) for step in range(200) for tag in tags])
        assert points_of(TensorBoard.read(tmp_path / name / NAME).points) == read_slowly(whole)[0]


def test_regular_rows_are_not_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a regular log, and of a second one, hardly any record is parsed alone."""
    parsed = []
    parse = reader.EventFile.parse
    monkeypatch.setattr(
        reader.EventFile, "parse", lambda self, *where: [parsed.append(where), *parse(self, *where)][1:]
    )
    write(tmp_path / NAME, [scalar(tag, step, step / 7) for step in range(3000) for tag in TAGS])
    monkeypatch.setattr(tfrecord, "PIECE", 10_000)
    for _ in range(2):
        assert len(TensorBoard.read(tmp_path / NAME).points) == 3000 * len(TAGS)
    assert len(parsed) < 2 * len(TAGS)


def short_run(path: Path, steps: int, *, every: int = 0) -> bytes:
    """A run of that many steps, of whose number of bytes there are three; with `every`, evaluated at times."""
    events = [Event(wall_time=1.7e9 + steps, file_version="brain.Event:2")]
    for step in range(steps):
        events += [scalar(tag, step, 1 / (step + steps), 1.7e9 + step) for tag in TAGS]
        if every and step % every == every - 1:
            events.append(scalar("val/loss", step, 2.0))
    return write(path, events)


@MANY
@given(st.data())
def test_a_known_beginning_hides_nothing(tmp_path: Path, data: st.DataObject) -> None:
    """Short runs that begin alike and end anywhere, go on differently, or are damaged: all is read as one by one."""
    for name in "abcde":
        (tmp_path / name).mkdir(exist_ok=True)
        steps, every = data.draw(st.sampled_from([1, 2, 127, 140, 200])), data.draw(st.sampled_from([0, 0, 0, 60]))
        whole = data.draw(damaged(short_run(tmp_path / name / NAME, steps, every=every)))
        (tmp_path / name / NAME).write_bytes(whole)
        expected, damage = read_slowly(whole)
        reading = TensorBoard.read(tmp_path / name / NAME)
        assert repr(points_of(reading.points)) == repr(expected)
        if expected and len(damage) <= MOST_REPORTED:
            assert [(p.offset, p.lost) for p in reading.problems] == [(a, f"{b - a} bytes") for a, b in damage]


def test_a_beginning_serves_runs_of_other_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that begin alike are enough, then a run is one group of rows; a longer one is learned anew."""
    groups = []
    for layout in (row_layout.RowLayout, long_row.LongRow):
        fields = layout.fields
        patched = lambda self, d, fields=fields: [groups.append(self), fields(self, d)][1]  # noqa: E731
        monkeypatch.setattr(layout, "fields", patched)
    expected = {"a": 3, "b": 3, "c": 1, "d": 1, "e": 1, "f": 2, "g": 3, "h": 3, "i": 1}
    for name, steps in zip(expected, (200, 200, 200, 150, 100, 900, 900, 900, 900), strict=True):
        (tmp_path / name).mkdir()
        whole = short_run(tmp_path / name / NAME, steps)
        groups.clear()
        assert points_of(TensorBoard.read(tmp_path / name / NAME).points) == read_slowly(whole)[0]
        assert (name, len(groups)) == (name, expected[name])


@pytest.mark.parametrize("flipped", [None, 3000], ids=["whole", "damaged"])
def test_a_beginning_that_occurs_twice_in_a_file(tmp_path: Path, flipped: int | None) -> None:
    """A restart that appends to the file of the first attempt."""
    for _ in range(3):
        whole = short_run(tmp_path / NAME, 200)
        TensorBoard.read(tmp_path / NAME)
    twice = bytearray(whole * 2)
    if flipped:
        twice[len(whole) + flipped] ^= 1
    (tmp_path / NAME).write_bytes(twice)
    assert points_of(TensorBoard.read(tmp_path / NAME).points) == read_slowly(bytes(twice))[0]


@pytest.mark.parametrize("rows_left", [2, 3, 4])
@pytest.mark.parametrize("after", [b"", b"noise", bytes(60)], ids=["whole", "noise", "zeros"])
def test_a_damaged_file_that_begins_as_others_with_more_tags(tmp_path: Path, rows_left: int, after: bytes) -> None:
    """Its rows are the first of a beginning that is known, and are fewer than the beginning has tags."""
    events = [Event(wall_time=1.7e9, file_version="brain.Event:2")]
    events += [scalar(tag, step, step + 0.5) for step, tag in enumerate("abcdef")]
    for _ in range(3):
        TensorBoard.read(write(tmp_path / NAME, events) and tmp_path / NAME)
    short = bytes(write(tmp_path / NAME, events[: 1 + rows_left])) + after
    (tmp_path / NAME).write_bytes(short)
    assert points_of(TensorBoard.read(tmp_path / NAME).points) == read_slowly(short)[0]
