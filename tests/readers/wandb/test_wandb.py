"""W&B transaction logs: what is kept of a run, the step axis, and damage anywhere."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmortem.core.reading import Reading
from postmortem.readers.wandb import WandbOffline
from postmortem.readers.wandb.transaction_log import RECORD
from tests.readers.cases import usual_name

QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BLOCK = 32768
START = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


@usual_name(WandbOffline)
def name_of_a_file() -> str:
    return "run-a.wandb"


def log_file(payloads: list[bytes]) -> tuple[bytes, list[int]]:
    """A transaction log with these records, framed as LevelDB does, and where each record ends."""
    out = bytearray(START)
    ends = []
    for payload in payloads:
        rest, first = payload, True
        while first or rest:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not rest]
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
        ends.append(len(out))
    return bytes(out), ends


def item(key: str, value: Any) -> dict[str, Any]:
    path = [k.encode() for k in key.split("|")]
    name = {"key": path[0]} if len(path) == 1 else {"nested_key": path}
    return {**name, "value_json": json.dumps(value).encode()}


def history(at: int | None, **values: Any) -> bytes:
    record = RECORD(history={"item": [item(k, v) for k, v in values.items()]})
    if at is not None:
        record.history.step.num = at
    return bytes(record.SerializeToString())


def read(path: Path, payloads: list[bytes]) -> Reading:
    path.write_bytes(log_file(payloads)[0])
    return WandbOffline.read(path)


def column(reading: Reading, tag: str) -> list[tuple[int, float]]:
    points = reading.points
    code = points.tags.index(tag)
    return [(int(s), float(v)) for c, s, v in zip(points.code, points.step, points.value, strict=True) if c == code]


def test_a_whole_run(tmp_path: Path) -> None:
    """History, config, summary, console, exit code, names and times of a run are kept."""
    run = RECORD(
        run={"run_id": b"abc", "project": b"p", "host": b"n1", "start_time": {"seconds": 5, "nanos": 500_000_000}}
    )
    run.run.config.update.add(**item("lr", 0.1))
    payloads = [
        run.SerializeToString(),
        RECORD(config={"update": [item("model|depth", 3), item("model|name", "x")]}).SerializeToString(),
        history(0, loss=2.0, _timestamp=100.5, _runtime=1.0),
        RECORD(output_raw={"output_type": 1, "line": b"step"}).SerializeToString(),
        RECORD(output_raw={"line": b"Traceback\n"}).SerializeToString(),
        RECORD(output_raw={"output_type": 1, "line": b" 0\n"}).SerializeToString(),
        history(1, loss=math.nan, acc=math.inf, low=-math.inf, _timestamp=101.5),
        RECORD(summary={"update": [item("best", 0.5), item("gone", 1), item("nested|a", 2)]}).SerializeToString(),
        RECORD(summary={"remove": [item("gone", 0)]}).SerializeToString(),
        RECORD(environment={"slurm": [{"key": b"job_id", "value": b"77"}]}).SerializeToString(),
        RECORD(stats=b"x").SerializeToString(),
        RECORD(exit={"exit_code": 1}).SerializeToString(),
    ]
    reading = read(tmp_path / "run-abc.wandb", payloads)
    assert column(reading, "loss")[0] == (0, 2.0)
    assert math.isnan(column(reading, "loss")[1][1])
    assert column(reading, "acc") == [(1, math.inf)]
    assert column(reading, "low") == [(1, -math.inf)]
    assert sorted(reading.points.tags) == ["acc", "loss", "low"]
    assert list(reading.points.wall_time) == [100.5, 101.5, 101.5, 101.5]
    assert reading.config == {"lr": 0.1, "model": {"depth": 3, "name": "x"}}
    assert reading.summary == {"best": 0.5, "nested": {"a": 2}}
    assert reading.facts["console"] == [("stderr", "Traceback\n"), ("stdout", "step 0\n")]
    assert (reading.ended, reading.facts["exit_code"], reading.facts["run_id"], reading.facts["job_id"]) == (
        "crashed",
        1,
        "abc",
        "77",
    )
    assert (reading.started, reading.stopped, reading.step_axis) == (5.5, 101.5, "_step")
    assert reading.skipped == {"system metrics": 1}
    assert reading.problems == []


@pytest.mark.parametrize(("code", "ended"), [(0, "completed"), (255, "crashed"), (None, None)])
def test_how_it_ended(tmp_path: Path, code: int | None, ended: str | None) -> None:
    """The exit code says how the run ended; without an exit record nothing is claimed."""
    exit_record = [] if code is None else [RECORD(exit={"exit_code": code}).SerializeToString()]
    reading = read(tmp_path / "r.wandb", [history(0, loss=1.0), *exit_record])
    assert reading.ended == ended
    assert reading.facts["exit_code"] == code


def test_nested_values_and_media(tmp_path: Path) -> None:
    """Nested numbers become tags with a dot, in either encoding; media, text and lists are counted and give none."""
    reading = read(
        tmp_path / "r.wandb",
        [
            history(0, **{"a|b": 1.0, "h|_type": "histogram", "h|bins": [1, 2], "h|count": 3}),
            history(
                1,
                a={"b": 2.0, "c": {"d": 3}},
                img={"_type": "image-file", "size": 9, "sha": {"x": 1}},
                note="hi",
                empty=None,
                flags=[True],
            ),
        ],
    )
    assert column(reading, "a.b") == [(0, 1.0), (1, 2.0)]
    assert sorted(reading.points.tags) == ["a.b", "a.c.d"]
    assert reading.skipped == {"histograms": 1, "images": 1, "non-numeric values": 2}


def test_typed_values(tmp_path: Path) -> None:
    """Numbers in the typed fields of newer clients are read like those in JSON."""
    items = [
        {"key": b"f", "number": math.inf},
        {"key": b"i", "integer": -7},
        {"key": b"j", "json": b'{"k": 2}'},
        {"key": b"t", "text": b"words"},
    ]
    reading = read(tmp_path / "r.wandb", [RECORD(history={"item": items, "step": {"num": 4}}).SerializeToString()])
    assert {tag: column(reading, tag) for tag in reading.points.tags} == {
        "f": [(4, math.inf)],
        "i": [(4, -7.0)],
        "j.k": [(4, 2.0)],
    }


@pytest.mark.parametrize("name", ["global_step", "trainer/global_step", "iter", "Iteration", "train/step"])
def test_a_counter_column_is_the_step(tmp_path: Path, name: str) -> None:
    """A column that counts is the axis, rows without it belong to the last one before; the choice is told."""
    rows = [
        history(0, **{name: 0, "loss": 5.0}),
        history(1, **{name: 100, "loss": 4.0}),
        history(2, acc=0.5),
        history(3, **{name: 200, "loss": 3.0}),
    ]
    reading = read(tmp_path / "r.wandb", rows)
    assert column(reading, "loss") == [(0, 5.0), (100, 4.0), (200, 3.0)]
    assert column(reading, "acc") == [(100, 0.5)]
    assert reading.step_axis == name
    assert name in reading.notes[0]


def test_console_in_pieces(tmp_path: Path) -> None:
    """Lines are put together from pieces, also where one ends inside a character, and in linear time."""
    text = "höhe\r" * 500 + "\nlast"
    pieces = [bytes([b]) for b in text.encode()]
    payloads = [RECORD(output_raw={"output_type": 1, "line": piece}).SerializeToString() for piece in pieces]
    reading = read(tmp_path / "r.wandb", payloads)
    assert reading.facts["console"] == [("stdout", text[:-4]), ("stdout", "last")]


def test_a_declared_step(tmp_path: Path) -> None:
    """The step that define_metric("*") names is the axis, whatever its name; the epoch of some tags is not."""
    rows = [history(i, **{"env frames": 64 * i, "epoch": i // 2, "loss": 1.0}) for i in range(4)]
    every = RECORD(metric={"glob_name": b"*", "step_metric": b"env frames"}).SerializeToString()
    some = RECORD(metric={"glob_name": b"val/*", "step_metric": b"epoch"}).SerializeToString()
    assert [s for s, _ in column(read(tmp_path / "r.wandb", [every, some, *rows]), "loss")] == [0, 64, 128, 192]
    assert [s for s, _ in column(read(tmp_path / "r.wandb", [some, *rows]), "loss")] == [0, 1, 2, 3]


def test_a_step_declared_for_some_tags(tmp_path: Path) -> None:
    """A step declared for the tags of at least half of the rows is the axis; one of a few evaluation rows is not."""
    train = RECORD(metric={"glob_name": b"train/*", "step_metric": b"env frames"}).SerializeToString()
    rows = [history(2 * i, **{"env frames": 64 * i, "train/loss": 1.0}) for i in range(8)]
    rows += [history(2 * i + 1, **{"eval/score": 0.5}) for i in range(8)]
    assert [s for s, _ in column(read(tmp_path / "r.wandb", [train, *rows]), "train/loss")] == list(range(0, 512, 64))
    few = RECORD(metric={"glob_name": b"eval/*", "step_metric": b"passes"}).SerializeToString()
    rows = [history(i, **{"train/loss": 1.0}) for i in range(8)] + [history(8, passes=0, **{"eval/score": 0.5})]
    assert [s for s, _ in column(read(tmp_path / "s.wandb", [few, *rows]), "train/loss")] == list(range(8))


def test_a_column_that_does_not_count_is_no_step(tmp_path: Path) -> None:
    """A column with a counter's name that starts again all the time, or says the same, leaves W&B's own steps in
    place."""
    reading = read(tmp_path / "r.wandb", [history(i, iter=i % 3, step=512, loss=1.0) for i in range(12)])
    assert [s for s, _ in column(reading, "loss")] == list(range(12))
    assert reading.step_axis == "_step"


def test_impossible_steps(tmp_path: Path) -> None:
    """Rows whose `_step` cannot be one are numbered."""
    reading = read(tmp_path / "r.wandb", [history(None, loss=1.0, _step=step) for step in (1e300, math.inf, "x", None)])
    assert column(reading, "loss") == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)]


def test_only_the_header(tmp_path: Path) -> None:
    """The 7 bytes a killed run can leave, fewer, none, and something else entirely: one Problem each, no points."""
    for data, said in [
        (START, "killed before"),
        (START[:5], "killed before"),
        (b"", "empty"),
        (b"hello world, this is text" * 9, "not a W&B log"),
    ]:
        path = tmp_path / "r.wandb"
        path.write_bytes(data)
        reading = WandbOffline.read(path)
        assert len(reading.points) == 0
        (problem,) = reading.problems
        assert said in problem.what


def big_run(n: int) -> tuple[list[bytes], bytes, list[int]]:
    """A log whose records go over several blocks, one of them longer than a block."""
    payloads = [
        history(i, loss=float(i), pad="x" * (9000 if i % 3 else 10) * (5 if i == n // 2 else 1)) for i in range(n)
    ]
    return (payloads, *log_file(payloads))


def losses(path: Path, data: bytes) -> tuple[list[float], Reading]:
    path.write_bytes(data)
    reading = WandbOffline.read(path)
    return [float(v) for v in reading.points.value], reading


def test_blocks_and_long_records(tmp_path: Path) -> None:
    """Records that cross blocks, and padding at their ends, are put together."""
    _, whole, _ = big_run(20)
    assert len(whole) > 4 * BLOCK
    got, reading = losses(tmp_path / "r.wandb", whole)
    assert got == [float(i) for i in range(20)]
    assert reading.problems == []


@QUICK
@given(st.integers(8, 10**7))
def test_cut_anywhere(tmp_path: Path, cut: int) -> None:
    """A log cut at any byte gives all records before the cut, and a Problem unless a record ends there."""
    _, whole, ends = big_run(12)
    cut = 8 + cut % (len(whole) - 8)
    got, reading = losses(tmp_path / "r.wandb", whole[:cut])
    complete = sum(end <= cut for end in ends)
    assert got == [float(i) for i in range(complete)]
    at_border = cut in ends or (complete and not any(whole[ends[complete - 1] : cut]) and cut - ends[complete - 1] < 7)
    assert bool(reading.problems) == (not at_border)


@QUICK
@given(where=st.integers(0, 10**7), mask=st.integers(1, 255))
def test_flip_any_byte(tmp_path: Path, where: int, mask: int) -> None:
    """One byte changed anywhere costs at most the record it is in."""
    _, whole, ends = big_run(12)
    where = 7 + where % (len(whole) - 7)
    data = bytearray(whole)
    data[where] ^= mask
    got, reading = losses(tmp_path / "r.wandb", bytes(data))
    hit = sum(end <= where for end in ends)
    assert [v for v in got if v != hit] == [float(i) for i in range(12) if i != hit]
    assert reading.problems


@QUICK
@given(where=st.integers(0, 10**7), garbage=st.binary(min_size=1, max_size=200), removed=st.integers(0, 2000))
def test_garbage_in_the_middle(tmp_path: Path, where: int, garbage: bytes, removed: int) -> None:
    """Bytes put in or taken out anywhere cost only the records they are in, though all blocks behind are shifted."""
    _, whole, ends = big_run(12)
    where = 7 + where % (len(whole) - 7)
    damaged = whole[:where] + garbage + whole[where + removed :]
    got, reading = losses(tmp_path / "r.wandb", damaged)
    before = sum(end <= where for end in ends)
    after = next((i for i in range(12) if (ends[i - 1] if i else 7) >= where + removed), 12)
    assert set(got) >= {float(i) for i in range(12) if i < before or i >= after}
    assert reading.problems or len(got) == 12  # a few zeros between records look like padding


@QUICK
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes(tmp_path: Path, data: bytes, header: bool) -> None:
    """Random bytes, with or without a log's header, give no points and a Problem."""
    got, reading = losses(tmp_path / "r.wandb", START * header + data)
    assert got == []
    assert len(reading.problems) == 1


@pytest.mark.parametrize("zeros", [16, 5000, 3 << 20])
def test_zeros_at_the_start(tmp_path: Path, zeros: int) -> None:
    """All records after NUL bytes are read, however many there are; the NUL bytes are one Problem."""
    _, whole, _ = big_run(20)
    got, reading = losses(tmp_path / "r.wandb", bytes(zeros) + whole)
    assert got == [float(i) for i in range(20)]
    (problem,) = reading.problems
    assert problem.what.startswith("NUL bytes before the records: the file was truncated")
    assert (problem.offset, problem.kept, problem.lost) == (0, "20 records after it", f"{zeros} bytes")


@pytest.mark.parametrize("cut", [3, 7, 30, 20_000])
def test_zeros_before_a_cut_record(tmp_path: Path, cut: int) -> None:
    """Where the header is lost as well, reading begins at the first whole record."""
    _, whole, ends = big_run(20)
    got, reading = losses(tmp_path / "r.wandb", bytes(3 << 20) + whole[cut:])
    first = sum(end <= cut for end in ends) + (cut > 7)
    assert got == [float(i) for i in range(first, 20)]
    assert reading.problems[0].what.startswith("NUL bytes before the records")


def test_garbage_longer_than_what_is_searched(tmp_path: Path) -> None:
    """After 3 MiB of other bytes, reading continues at the next block that begins with a record."""
    _, whole, _ = big_run(600)
    assert len(whole) > 3 << 20
    got, reading = losses(tmp_path / "r.wandb", b"\xff" * (3 << 20) + whole[3 << 20 :])
    assert got == [float(i) for i in range(600 - len(got), 600)]
    assert len(got) > 50
    assert reading.problems[0].what.startswith("corrupt record")


def test_the_real_client(tmp_path: Path) -> None:
    """What the installed W&B client writes offline is read: numbers, NaN, nested keys, config, console and exit
    code."""
    pytest.importorskip("wandb")
    script = """
import wandb
run = wandb.init(mode="offline", dir=".", project="p", config={"lr": 0.5, "model": {"n": 3}}, settings=wandb.Settings(console="wrap"))
run.define_metric("*", step_metric="frames")
for i in range(5):
    print("training", i)
    run.log({"frames": 64 * i, "loss": float("nan") if i == 3 else 1 / (i + 1), "deep": {"er": i}, "h": wandb.Histogram([1, 2])}, step=10 * i)
run.finish(exit_code=3)
"""  # noqa: E501
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, env=environment, capture_output=True, timeout=120
    )
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    reading = WandbOffline.read(path)
    assert reading.problems == []
    loss = column(reading, "loss")
    assert [s for s, _ in loss] == [0, 64, 128, 192, 256]
    assert [v for _, v in loss if not math.isnan(v)] == [1.0, 0.5, 1 / 3, 0.2]
    assert column(reading, "deep.er") == [(64 * i, float(i)) for i in range(5)]
    assert reading.config == {"lr": 0.5, "model": {"n": 3}}
    assert [text for stream, text in reading.facts["console"] if stream == "stdout"][:5] == [
        f"training {i}\n" for i in range(5)
    ]
    assert (reading.ended, reading.facts["exit_code"]) == ("crashed", 3)
    assert reading.skipped["histograms"] == 5


def test_digits_beyond_any_float(tmp_path: Path) -> None:
    """An integer of 401 digits in the history is damage that is counted, not an infinity."""
    reading = read(
        tmp_path / "run-x.wandb", [history(0, loss=1.0), history(1, loss=-int("9" * 401)), history(2, loss=math.inf)]
    )
    assert [float(v) for v in reading.points.value if v > 0] == [1.0, math.inf]
    assert reading.skipped["integers too large for a float (damaged)"] == 1
