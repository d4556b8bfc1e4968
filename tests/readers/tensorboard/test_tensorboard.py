"""TensorBoard event files: every encoding of a scalar, and damage anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.record_writer import RecordWriter

import postmortem
from postmortem.core.model import Problem
from postmortem.core.points import Points
from postmortem.core.reading import Reading
from postmortem.readers.tensorboard import TensorBoard, bulk_scalars, tfrecord
from tests.readers.cases import usual_name

NAME = "events.out.tfevents.1700000000.node7.domain.123.0"
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Row = tuple[str, int, float, float]


@usual_name(TensorBoard)
def name_of_a_file() -> str:
    return NAME


def write(path: Path, events: list[Event]) -> bytes:
    """Writes the events with TensorBoard's own record writer."""
    with path.open("wb") as stream:
        writer = RecordWriter(stream)
        for event in events:
            writer.write(event.SerializeToString())
    return path.read_bytes()


def scalar(tag: str, step: int, value: float, wall_time: float = 1.7e9) -> Event:
    return Event(wall_time=wall_time, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def tensor(tag: str, step: int, proto: TensorProto, plugin: str = "") -> Event:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if plugin else None
    return Event(
        wall_time=1.7e9, step=step, summary=Summary(value=[Summary.Value(tag=tag, tensor=proto, metadata=metadata)])
    )


def rows(points: Points) -> list[Row]:
    return [
        (points.tags[c], int(s), float(v), float(w))
        for c, s, v, w in zip(points.code, points.step, points.value, points.wall_time, strict=True)
    ]


def some_events(n: int) -> list[Event]:
    """A version record, then `n` scalars of two tags."""
    first = Event(wall_time=1.7e9, file_version="brain.Event:2")
    return [first, *(scalar("train/loss" if i % 2 else "lr", i // 2, 1 / (i + 1), 1.7e9 + i) for i in range(n))]


def read(path: Path, data: bytes) -> Reading:
    path.write_bytes(data)
    return TensorBoard.read(path)


def test_values_survive_exactly(tmp_path: Path) -> None:
    """Step 0, negative and huge steps, NaN, infinities and wall times come back as they were written."""
    events = [
        scalar("a", 0, math.nan, 1.5),
        scalar("a", -3, math.inf, 2.5),
        scalar("b/c d", 2**40, -math.inf, 1.7e9 + 0.123456),
        scalar("a", 7, 0.5),
    ]
    write(tmp_path / NAME, events)
    reading = TensorBoard.read(tmp_path / NAME)
    got = rows(reading.points)
    assert math.isnan(got[0][2])
    assert got[0][:2] == ("a", 0)
    assert got[1:] == [("a", -3, math.inf, 2.5), ("b/c d", 2**40, -math.inf, 1.7e9 + 0.123456), ("a", 7, 0.5, 1.7e9)]
    assert reading.problems == []
    assert reading.facts["host"] == "node7.domain"


TYPED = [
    ("f4", 1, "float_val"),
    ("f8", 2, "double_val"),
    ("i4", 3, "int_val"),
    ("u1", 4, "int_val"),
    ("i2", 5, "int_val"),
    ("i1", 6, "int_val"),
    ("i8", 9, "int64_val"),
    ("?", 10, "bool_val"),
    ("u2", 17, "int_val"),
    ("u4", 22, "uint32_val"),
    ("u8", 23, "uint64_val"),
]


@pytest.mark.parametrize("repeat", [1, 40], ids=["one", "many"])
@pytest.mark.parametrize(("kind", "dtype", "field"), TYPED)
def test_tensors_of_every_type(tmp_path: Path, kind: str, dtype: int, field: str, repeat: int) -> None:
    """A TF2 scalar tensor reads the same as raw content and as a typed list, alone and in bulk, with the rank-1 shape
    too."""
    value = np.array([1], kind)[0]
    one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    events = []
    for step in range(repeat):
        events.append(tensor("raw", step, TensorProto(dtype=dtype, tensor_content=value.tobytes()), "scalars"))
        typed = TensorProto(dtype=dtype, tensor_shape=one)
        getattr(typed, field).append(value.item())
        events.append(tensor("list", step, typed))
    write(tmp_path / NAME, events)
    reading = TensorBoard.read(tmp_path / NAME)
    assert rows(reading.points) == [(tag, step, 1.0, 1.7e9) for step in range(repeat) for tag in ("raw", "list")]
    assert reading.skipped == {}


@pytest.mark.parametrize(
    ("dtype", "bits", "value"), [(19, 0x3E00, 1.5), (19, 0x7C00, math.inf), (14, 0x3FC0, 1.5), (14, 0xFF80, -math.inf)]
)
@pytest.mark.parametrize("repeat", [1, 40])
def test_half_and_bfloat16(tmp_path: Path, dtype: int, bits: int, value: float, repeat: int) -> None:
    """Half and bfloat16 read right from raw content and from half_val."""
    raw = tensor("x", 5, TensorProto(dtype=dtype, tensor_content=bits.to_bytes(2, "little")))
    listed = tensor("x", 5, TensorProto(dtype=dtype, half_val=[bits]))
    write(tmp_path / NAME, [raw, listed] * repeat)
    assert rows(TensorBoard.read(tmp_path / NAME).points) == [("x", 5, value, 1.7e9)] * 2 * repeat


def test_other_kinds_are_counted(tmp_path: Path) -> None:
    """Histograms, images, audio, text, graphs and hparams give no points; they are counted, and hparams are config."""
    matrix = TensorProto(
        dtype=2,
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=2), TensorShapeProto.Dim(size=3)]),
        double_val=[0.0] * 6,
    )
    texts = TensorProto(dtype=7, string_val=[b"hello"])
    values = [
        Summary.Value(tag="h", histo={"min": 0.0}),
        Summary.Value(tag="i", image={"height": 1}),
        Summary.Value(tag="a", audio={"sample_rate": 1.0}),
        hparams.hparams_pb({"lr": 0.1, "name": "adam", "amp": True}).value[0],
    ]
    events = [Event(wall_time=1.0, graph_def=b"xyz"), Event(wall_time=1.0, summary=Summary(value=values))]
    events += [tensor("h2", s, matrix, "histograms" if s == 0 else "") for s in range(30)] + [
        tensor("t", 0, texts, "text")
    ]
    events.append(scalar("loss", 3, 2.0))
    write(tmp_path / NAME, events)
    reading = TensorBoard.read(tmp_path / NAME)
    assert rows(reading.points) == [("loss", 3, 2.0, 1.7e9)]
    assert reading.skipped == {"graphs": 1, "histograms": 31, "images": 1, "audio": 1, "hparams": 1, "text": 1}
    assert {k: reading.config[k] for k in ("lr", "name", "amp")} == {"lr": 0.1, "name": "adam", "amp": True}


def test_several_values_in_one_event(tmp_path: Path) -> None:
    """An event with several values gives them all, in their order, also where its neighbours are read in bulk."""
    event = Event(wall_time=2.0, step=9, summary=Summary(value=[Summary.Value(tag=t, simple_value=1.0) for t in "xyz"]))
    write(tmp_path / NAME, [*some_events(40), event, *some_events(40)])
    got = rows(TensorBoard.read(tmp_path / NAME).points)
    assert got[40:43] == [("x", 9, 1.0, 2.0), ("y", 9, 1.0, 2.0), ("z", 9, 1.0, 2.0)]
    assert len(got) == 83


@QUICK
@given(st.data())
def test_bulk_and_single_reading_agree(tmp_path: Path, data: st.DataObject) -> None:
    """Reading by columns gives the same as parsing record by record, for any mix of tags, lengths, steps and kinds."""
    tags = data.draw(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4, unique=True))
    steps = st.sampled_from([0, 1, 127, 128, 16384, 2**35, -1])
    number = st.floats(width=32)
    events = []
    for tag, step, value, as_tensor in data.draw(
        st.lists(st.tuples(st.sampled_from(tags), steps, number, st.booleans()), max_size=30)
    ):
        one = tensor(tag, step, TensorProto(dtype=1, float_val=[value])) if as_tensor else scalar(tag, step, value)
        events += [one] * data.draw(st.sampled_from([1, 1, 20]))
    write(tmp_path / NAME, events)
    bulk = rows(TensorBoard.read(tmp_path / NAME).points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_scalars, "FEW", 10**9)
        single = rows(TensorBoard.read(tmp_path / NAME).points)
    assert repr(bulk) == repr(single)


@QUICK
@given(st.data())
def test_records_that_are_no_events(tmp_path: Path, data: st.DataObject) -> None:
    """Whole records of other bytes, or of odd protobuf, are read the same in bulk and one by one, and raise nothing."""
    pieces = [
        st.binary(max_size=6),
        st.sampled_from(
            [
                bytes([1 << 3 | 1]) + bytes(8),
                b"\x10\x05",
                b"\x2a\x09\x0a\x07\x0a\x01a\x15\x00\x00\x80",
                b"\x2a\x09\x0a\x07\x0a\x01a\x15\x00\x00\x80\x3f",
            ]
        ),
        st.sampled_from([b"\x0b\x0c", b"\x12\x01a", b"\x2d\x00\x00\x00\x00", b"\x28\x01", b"\x2a\x80\x00"]),
    ]
    payloads = data.draw(st.lists(st.lists(st.one_of(pieces), max_size=4).map(b"".join), min_size=1, max_size=6))
    payloads = [p for p in payloads for _ in range(data.draw(st.sampled_from([1, 20])))]
    with (tmp_path / NAME).open("wb") as stream:
        writer = RecordWriter(stream)
        for one in payloads:
            writer.write(one)
    bulk = TensorBoard.read(tmp_path / NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_scalars, "FEW", 10**9)
        single = TensorBoard.read(tmp_path / NAME)
    assert repr(rows(bulk.points)) == repr(rows(single.points))
    assert [p.offset for p in bulk.problems] == [p.offset for p in single.problems]


@QUICK
@given(cut=st.integers(0, 10**6), n=st.sampled_from([3, 60]))
def test_cut_anywhere(tmp_path: Path, cut: int, n: int) -> None:
    """A file cut at any byte gives all scalars before the cut, and a Problem with the place unless a record ends
    there."""
    whole = write(tmp_path / NAME, some_events(n))
    ends = np.cumsum([len(e.SerializeToString()) + 16 for e in some_events(n)])
    cut %= len(whole)
    reading = read(tmp_path / NAME, whole[:cut])
    complete = int(np.searchsorted(ends, cut, side="right"))
    assert len(reading.points) == max(0, complete - 1)
    begin = int(ends[complete - 1]) if complete else 0
    if cut == 0:
        assert "empty" in reading.problems[0].what
    elif cut == begin:
        assert reading.problems == []
    else:
        (problem,) = reading.problems
        assert problem.offset == begin
        assert problem.what.startswith("truncated")
        assert problem.lost == f"{cut - begin} bytes"


@QUICK
@given(where=st.integers(0, 10**6), mask=st.integers(1, 255), n=st.sampled_from([3, 60]))
def test_flip_any_byte(tmp_path: Path, where: int, mask: int, n: int) -> None:
    """One byte changed anywhere costs its record and no other, and is told with the record's offset."""
    events = some_events(n)
    whole = bytearray(write(tmp_path / NAME, events))
    ends = np.cumsum([len(e.SerializeToString()) + 16 for e in events])
    intact = rows(read(tmp_path / NAME, bytes(whole)).points)
    where %= len(whole)
    whole[where] ^= mask
    reading = read(tmp_path / NAME, bytes(whole))
    hit = int(np.searchsorted(ends, where, side="right"))
    assert rows(reading.points) == [row for i, row in enumerate(intact) if i != hit - 1]
    (problem,) = reading.problems
    assert problem.offset == (int(ends[hit - 1]) if hit else 0)
    assert problem.lost == f"{len(events[hit].SerializeToString()) + 16} bytes"
    if 0 < hit < n:
        assert problem.what.startswith("corrupt record")


@QUICK
@given(
    where=st.integers(0, 10**6),
    garbage=st.binary(min_size=1, max_size=300),
    removed=st.integers(0, 80),
    n=st.sampled_from([3, 60]),
)
def test_garbage_in_the_middle(tmp_path: Path, where: int, garbage: bytes, removed: int, n: int) -> None:
    """Bytes put in or taken out anywhere: what stands whole before and after them is still read, and a Problem says
    so."""
    events = some_events(n)
    whole = write(tmp_path / NAME, events)
    ends = np.cumsum([len(e.SerializeToString()) + 16 for e in events])
    where %= len(whole)
    intact = rows(read(tmp_path / NAME, whole).points)
    damaged = whole[:where] + garbage + whole[where + removed :]
    reading = read(tmp_path / NAME, damaged)
    # a byte that is put in before its like leaves more whole
    same = next((i for i, (a, b) in enumerate(zip(whole, damaged, strict=False)) if a != b), len(whole))
    before = int(np.searchsorted(ends, same, side="right"))
    after = int(np.searchsorted(np.concatenate([[0], ends[:-1]]), where + removed, side="left"))
    after = max(before, after)
    survivors = intact[: max(0, before - 1)] + intact[max(0, after - 1) :]
    assert rows(reading.points) == survivors
    assert reading.problems or damaged == whole


@QUICK
@given(st.binary(min_size=12, max_size=400))
def test_random_bytes_are_no_event_file(tmp_path: Path, data: bytes) -> None:
    """Random bytes under an event file's name give no points and one Problem."""
    reading = read(tmp_path / NAME, data)
    assert len(reading.points) == 0
    (problem,) = reading.problems
    assert problem.what.startswith("not an event file")


def test_a_file_with_no_scalars_is_whole(tmp_path: Path) -> None:
    """Only the version record, as a trial leaves that stopped at once: no Problem, a note."""
    write(tmp_path / NAME, some_events(0))
    reading = TensorBoard.read(tmp_path / NAME)
    assert reading.problems == []
    assert reading.notes == ["an event file without scalars"]


def test_a_corrupt_value_in_bulk_is_left_out(tmp_path: Path) -> None:
    """A flipped bit in a value that is read by columns is seen, in a file larger than a piece, with records across its
    border."""
    events = some_events(3000)
    chunk = write(tmp_path / NAME, events)
    copies = 30
    data = bytearray(chunk * copies)
    assert len(data) > 3 << 20
    begin = data.find(events[100].SerializeToString(), 17 * len(chunk))
    data[begin + len(events[100].SerializeToString()) - 1] ^= 1
    reading = read(tmp_path / NAME, bytes(data))
    assert len(reading.points) == 3000 * copies - 1
    assert [p.offset for p in reading.problems] == [begin - 12]


def test_a_large_record_between_scalars(tmp_path: Path) -> None:
    """A record larger than the pieces the file is read in is stepped over whole."""
    big = Event(wall_time=1.0, graph_def=bytes(3 << 20))
    write(tmp_path / NAME, [*some_events(20), big, *some_events(20)])
    reading = TensorBoard.read(tmp_path / NAME)
    assert len(reading.points) == 40
    assert reading.skipped == {"graphs": 1}
    assert reading.problems == []


def test_torch_writer(tmp_path: Path) -> None:
    """What torch's SummaryWriter writes comes back point by point."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in range(100):
            writer.add_scalar("loss", 1 / (step + 1), step, walltime=1.7e9 + step)
            writer.add_scalar("new style", step, step, walltime=1.7e9 + step, new_style=True)
        writer.add_text("notes", "hello")
        writer.add_histogram("weights", np.arange(10.0), 1)
    (path,) = tmp_path.iterdir()
    reading = TensorBoard.read(path)
    expected = [
        row
        for s in range(100)
        for row in [("loss", s, float(np.float32(1 / (s + 1))), 1.7e9 + s), ("new style", s, float(s), 1.7e9 + s)]
    ]
    assert rows(reading.points) == expected
    assert reading.skipped == {"text": 1, "histograms": 1}


def test_histograms_of_gradients_give_their_norm(tmp_path: Path) -> None:
    """A gradient that vanishes in histograms only is found; weights and biases give no norm."""
    for name, last in (("healthy", 1.0), ("vanishes", 1e-9)):
        events = []
        for step in range(60):
            scale = 1.0 if step < 40 else last
            events.append(scalar("loss", step, 2.3 - step / 100))
            for tag, size in (
                ("grads/fc1.weight", scale),
                ("fc1.weight.grad", scale),
                ("grads/fc1.bias", 0),
                ("fc1", 1),
            ):
                histo = {"min": -size, "max": size, "num": 100, "sum": 0, "sum_squares": 25 * size**2}
                events.append(
                    Event(step=step, wall_time=1e9, summary=Summary(value=[Summary.Value(tag=tag, histo=histo)]))
                )
        (tmp_path / name).mkdir()
        write(tmp_path / name / NAME, events)
    found = {run.run.name: run.findings for run in postmortem.scan(tmp_path).runs}
    assert not found["healthy"]
    assert [(f.name, f.step) for f in found["vanishes"]] == [("gradient-vanishing", 40)] * 2
    roles = postmortem.load(tmp_path / "healthy").roles
    assert roles == {
        "loss": "loss", "grads/fc1.weight/norm": "layer_grad_norm", "fc1.weight.grad/norm": "layer_grad_norm",
    }  # fmt: skip


@pytest.mark.parametrize("dies", [False, True])
def test_histograms_of_activations_give_their_size(tmp_path: Path, dies: bool) -> None:
    """A ReLU that outputs nothing but zeros from a step on is found; a healthy one, half of it zeros, is not."""
    torch = pytest.importorskip("torch")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    torch.manual_seed(0)
    first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.02)
    x = torch.randn(32, 8)
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in range(40):
            if dies and step == 25:
                with torch.no_grad():
                    first.bias -= 100.0  # what one far too large update does
            hidden = first(x).relu()
            loss = (second(hidden) - x[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss.item(), step)
            writer.add_histogram("activations/relu1", hidden, step)
            writer.add_histogram("activations.0.weight", first.weight, step)
    (report,) = postmortem.scan(tmp_path).runs
    assert [(f.name, f.step) for f in report.findings if f.name == "activation-vanishing"] == (
        [("activation-vanishing", 25)] if dies else []
    )
    assert "GRD004" in report.checked
    assert report.run is not None
    assert {tag for tag in report.run.roles if tag != "loss"} == {"activations/relu1/rms"}


def test_many_damaged_places_are_summed_up(tmp_path: Path) -> None:
    """Problems stay few where a file is damaged all over, and all lost bytes are in them."""
    events = some_events(200)
    data = bytearray(write(tmp_path / NAME, events))
    ends = np.cumsum([len(e.SerializeToString()) + 16 for e in events])
    for i in range(10, 180, 2):
        data[int(ends[i]) - 5] ^= 0xFF
    reading = read(tmp_path / NAME, bytes(data))
    assert len(reading.points) == 200 - 85
    assert len(reading.problems) == 21
    assert "65 more" in reading.problems[-1].what


@pytest.mark.parametrize("zeros", [16, 100, 5000])
def test_zeros_at_the_end(tmp_path: Path, zeros: int) -> None:
    """Zeros where a machine went down before the data reached the disk are told as such."""
    whole = write(tmp_path / NAME, some_events(30))
    reading = read(tmp_path / NAME, whole + bytes(zeros))
    assert len(reading.points) == 30
    (problem,) = reading.problems
    assert problem.what.startswith("NUL bytes")
    assert (problem.offset, problem.lost) == (len(whole), f"{zeros} bytes")


def test_empty_records(tmp_path: Path) -> None:
    """A record without a payload is an event that says nothing; those around it are read."""
    with (tmp_path / NAME).open("wb") as stream:
        writer = RecordWriter(stream)
        for event in some_events(40):
            writer.write(event.SerializeToString())
            writer.write(b"")
    reading = TensorBoard.read(tmp_path / NAME)
    assert len(reading.points) == 40
    assert reading.problems == []


@QUICK
@given(st.data())
def test_the_size_of_pieces_does_not_matter(tmp_path: Path, data: st.DataObject) -> None:
    """However small the pieces a damaged file is read in, the points and the Problems are the same."""
    whole = bytearray(write(tmp_path / NAME, some_events(data.draw(st.sampled_from([2, 30])))))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["flip", "insert", "remove", "cut"]))
        if kind == "flip":
            whole[at] ^= data.draw(st.integers(1, 255))
        elif kind == "insert":
            whole[at:at] = data.draw(st.binary(max_size=150))
        elif kind == "remove":
            del whole[max(1, at) : at + data.draw(st.integers(1, 90))]
        else:
            del whole[max(1, at) :]
    at_once = read(tmp_path / NAME, bytes(whole))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "PIECE", data.draw(st.integers(1, 200)))
        patch.setattr(tfrecord, "REGION", data.draw(st.integers(1, 100)))
        in_pieces = TensorBoard.read(tmp_path / NAME)
    assert rows(in_pieces.points) == rows(at_once.points)
    assert stretches(in_pieces.problems) == stretches(at_once.problems)


def stretches(problems: list[Problem]) -> list[tuple[str, int | None, int | str]]:
    """(what, offset, bytes lost) of each; two that pieces part, without a gap between them, are one."""
    found: list[tuple[str, int | None, int | str]] = []
    for p in problems:
        lost = int(p.lost.split()[0]) if p.lost.endswith(" bytes") else p.lost
        last = found[-1] if found else None
        if last and last[0] == p.what and isinstance(lost, int) and (last[1] or 0) + int(last[2]) == p.offset:
            found[-1] = (p.what, last[1], int(last[2]) + lost)
        else:
            found.append((p.what, p.offset, lost))
    return found


def test_records_on_either_side_of_zeros(tmp_path: Path) -> None:
    """What is kept stands before, after or around the damage."""
    whole = write(tmp_path / NAME, some_events(30))
    assert read(tmp_path / NAME, whole + bytes(4096)).problems[0].kept.endswith("records before it")
    assert read(tmp_path / NAME, bytes(4096) + whole).problems[0].kept.endswith("records after it")
    assert read(tmp_path / NAME, whole + bytes(4096) + whole).problems[0].kept.endswith("records around it")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_histograms_with_a_nonfinite_value(tmp_path: Path, bad: float) -> None:
    """torch's histogram of an activation that holds a NaN or an infinity is evidence at its step."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    values = np.arange(10.0)
    with np.errstate(invalid="ignore"), tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in range(60):
            writer.add_scalar("loss", 2.3 - step / 100, step)
            writer.add_histogram("act/fc1", np.append(values, bad) if step >= 40 else values, step, bins=[-99.0, 0, 99])
            writer.add_histogram("act/zero", values * 0, step)
    (report,) = postmortem.scan(tmp_path).runs
    assert report.run is not None
    assert {"act/fc1/rms", "act/zero/rms"} <= set(report.run.roles)
    tags = {tag for tag in report.run.roles if tag != "loss" and not tag.endswith("/rms")}
    assert len(tags) == 1
    assert next(iter(tags)).startswith("act/fc1/")
    kind = "nan-onset" if np.isnan(bad) else "inf-onset"
    assert (kind, 40) in [(f.name, f.step) for f in report.findings]


def test_texts(tmp_path: Path) -> None:
    """Settings logged as text are the configuration; a traceback logged as text is an event; other text is counted."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_text("args", json.dumps({"learning_rate": 5e-5, "fp16": True, "nested": {"a": 1}}))
        writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|gamma|0.99|\n|env_id|CartPole-v1|\n|cuda|True|")
        writer.add_text("notes", "|a|b|c|\n|-|-|-|\n|1|2|3|")
        for step in range(50):
            writer.add_scalar("loss", 2.3 - step / 100, step)
        writer.add_text("error", "RuntimeError: CUDA error: out of memory", 49)
    run = postmortem.load(tmp_path)
    assert run.config == {
        "learning_rate": 5e-5, "fp16": True, "nested": {"a": 1}, "gamma": 0.99, "env_id": "CartPole-v1", "cuda": True,
    }  # fmt: skip
    assert [(e.severity, e.step) for e in run.event_list] == [("error", 49)]
    assert run.skipped["text"] == 4
