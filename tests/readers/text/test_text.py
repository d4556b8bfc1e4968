"""The text reader: encodings, terminal control, ranks, steps, damage, and that reading by layout changes nothing."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.core.reading import Reading
from postmortem.readers.text import TextReader, read_text
from postmortem.readers.text.row_parser import RowParser
from tests.readers.cases import usual_name

SETTINGS = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@usual_name(TextReader)
def name_of_a_file() -> str:
    return "train.out"


def read(folder: Path, data: str | bytes, name: str = "train.out", fast: bool = True) -> Reading:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_text(path, fast=fast)


def points_of(reading: Reading, tag: str = "loss") -> list[tuple[int, float]]:
    p = reading.points
    return [(int(s), float(v)) for c, s, v in zip(p.code, p.step, p.value, strict=True) if p.tags[c] == tag]


PLAIN = "".join(f"step {i} loss {2 - i / 100:.4f} lr 1.0e-04\n" for i in range(0, 60, 10))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    """UTF-16 with and without a mark, a UTF-8 mark, and Latin-1 bytes do not hide the numbers."""
    reading = read(tmp_path, ("Müller's training: Größe\n" + PLAIN).encode(encoding))
    assert points_of(reading)[:2] == [(0, 2.0), (10, 1.9)]
    assert len(points_of(reading)) == 6


def test_colours_and_cursor_moves(tmp_path: Path) -> None:
    """Escape sequences inside and between fields are taken away."""
    text = "".join(f"\x1b[31mstep: {i}  \x1b[38;2;180;60;0mloss: {i / 10:.2f}\x1b[39m\x1b[K\n" for i in range(1, 5))
    assert points_of(read(tmp_path, text)) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_hole_of_nul_bytes(tmp_path: Path) -> None:
    """NUL bytes are a problem with their place; what stands around them is read."""
    reading = read(tmp_path, PLAIN.encode() + b"\0" * 100 + b"\n" + b"step 70 loss 1.0 lr 1.0e-04\n")
    assert points_of(reading)[-1] == (70, 1.0)
    (problem,) = reading.problems
    assert (problem.offset, problem.line) == (len(PLAIN), 7)


def test_the_nul_of_a_dying_worker(tmp_path: Path) -> None:
    """torch writes the end of its string with the message: nothing is damaged, and a NUL elsewhere still is."""
    dying = (
        b"ERROR: Unexpected segmentation fault encountered in worker.\n\0"
        b"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory.\n\0"
    )
    reading = read(tmp_path, PLAIN.encode() + dying + b"step 70 loss 1.0 lr 1.0e-04\n")
    assert (points_of(reading)[-1], reading.problems) == ((70, 1.0), [])
    assert len(read(tmp_path, PLAIN.encode() + dying + b"step 70\0 loss 1.0\n").problems) == 1


def test_glued_prints(tmp_path: Path) -> None:
    """Two ranks printed onto one line: both numbers count, each with its step."""
    reading = read(tmp_path, "step 1: loss 0.3299step 2: loss 0.2870\n\nstep 3: loss 0.1\n")
    assert points_of(reading) == [(1, 0.3299), (2, 0.287), (3, 0.1)]
    reading = read(tmp_path, "rank 0 iter 1: loss 0.6290rank 1 iter 1: loss 0.6491\n\nrank 1 iter 2: loss 0.5rank 0\n")
    points = reading.points
    found = zip(points.rank.tolist(), points.step.tolist(), points.value.tolist(), strict=True)
    assert list(found) == [(0, 1, 0.629), (1, 1, 0.6491), (1, 2, 0.5)]
    assert points_of(read(tmp_path, "step 1 loss 0.3\nstep 2 loss 0.6290oops\n")) == [(1, 0.3)]  # and not 0


@pytest.mark.parametrize(
    ("prefix", "ranks"),
    [
        ("[rank{}]: ", [0, 3]),
        ("[default{}]:", [0, 3]),
        (" {}: ", [0, 3]),
        ("[1,{}]<stdout>:", [0, 3]),
        ("rank={} ", [0, 3]),
    ],
)
def test_ranks(prefix: str, ranks: list[int], tmp_path: Path) -> None:
    """The usual prefixes name the rank, and the ranks' numbers stay apart."""
    text = "".join(f"{prefix.format(r)}step {i} loss {r}.{i}\n" for i in range(1, 80) for r in ranks)
    points = read(tmp_path, text).points
    assert sorted(set(points.rank.tolist())) == ranks
    assert all(int(v) == r for v, r in zip(points.value, points.rank, strict=True))


def test_ranks_without_a_name_are_kept(tmp_path: Path) -> None:
    """The same step twice with different numbers is two numbers; the same number twice is one, and counted."""
    reading = read(tmp_path, "step 0: loss 0.1420\nstep 0: loss 0.0625\nstep 1: loss 0.5\nstep 1: loss 0.5\n")
    assert points_of(reading) == [(0, 0.142), (0, 0.0625), (1, 0.5)]
    assert reading.skipped["repeated prints of the same number"] == 1


def test_rounded_repeats_count_once(tmp_path: Path) -> None:
    """A second logger prints the same number with fewer digits."""
    text = "".join(f"global_step={i}, loss={0.12345 + i:.5f}\n{i}) loss = {0.12345 + i:.3f}\n" for i in range(5))
    assert points_of(read(tmp_path, text)) == [(i, round(0.12345 + i, 5)) for i in range(5)]


def test_settings_before_the_first_step(tmp_path: Path) -> None:
    """A listing of the configuration is no series of metrics; it is counted."""
    reading = read(tmp_path, "lr: 0.1\nbatch_size: 32\nloss: mse\nweight_decay=0.01\n" + PLAIN)
    assert points_of(reading, "lr")[0] == (0, 1e-4)
    assert "batch_size" not in reading.points.tags
    assert reading.skipped["numbers printed before the first step"] == 3


def test_restart_in_one_file(tmp_path: Path) -> None:
    """Two jobs in one file: the steps go back, and the second configuration is none of the metrics."""
    points = read(tmp_path, "lr: 0.1\n" + PLAIN + "lr: 0.5\nbatch_size: 32\n" + PLAIN).points
    assert points.step[points.code == points.tags.index("loss")].tolist() == [0, 10, 20, 30, 40, 50] * 2
    assert set(points.value[points.code == points.tags.index("lr")].tolist()) == {1e-4}


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("epoch {e} iter {n} loss 0.{n}", [10, 20, 30, 40]),  # the counter starts again: 20 per epoch
        ("Epoch [{e}/2], Step [{n}/30], loss: 0.{n}", [10, 20, 40, 50]),  # the total is printed
        ("epoch {e} global_step {g} loss 0.{n}", [10, 20, 30, 40]),
    ],
)
def test_steps_within_an_epoch(line: str, steps: list[int], tmp_path: Path) -> None:
    """A position within an epoch becomes a global step by the total, printed or learnt."""
    text = "".join(line.format(e=e, n=n, g=(e - 1) * 20 + n) + "\n" for e in (1, 2) for n in (10, 20))
    assert [s for s, _ in points_of(read(tmp_path, text))] == steps


def test_global_iterations_with_an_epoch(tmp_path: Path) -> None:
    """A counter that goes on through the epochs is a global step already."""
    text = "".join(f"epoch {i // 3} iter {i * 10}: loss=0.{i}\n" for i in range(1, 9))
    assert [s for s, _ in points_of(read(tmp_path, text))] == [i * 10 for i in range(1, 9)]


def test_without_any_step(tmp_path: Path) -> None:
    """Lines without a step keep their order, and the reading notes it."""
    reading = read(tmp_path, "loss: 0.5 acc: 0.1\nloss: 0.4 acc: 0.2\nloss: 0.3 acc: 0.3\n")
    assert reading.step_axis == "row"
    assert points_of(reading) == [(0, 0.5), (1, 0.4), (2, 0.3)]
    assert any("rows are counted" in note for note in reading.notes)


def test_epochs_only(tmp_path: Path) -> None:
    """Where only epochs are printed they are the axis."""
    reading = read(tmp_path, "Epoch 1/3\nloss: 0.5\nEpoch 2/3\nloss: 0.4\nEpoch 3/3\nloss: nan\n")
    assert reading.step_axis == "epoch"
    assert [s for s, _ in points_of(reading)] == [1, 2, 3]
    assert math.isnan(points_of(reading)[-1][1])


def test_times_and_job(tmp_path: Path) -> None:
    """The first and last time stamps and the job's number are facts of the reading."""
    text = "".join(f"2026-11-20 12:00:0{i},500 - INFO - step {i} loss 0.{i}\n" for i in range(1, 8))
    reading = read(tmp_path, text, name="slurm-4242.out")
    assert (reading.started, reading.stopped) == (1795176001.5, 1795176007.5)
    assert reading.facts["job_id"] == "4242"
    assert reading.points.wall_time[0] == 1795176001.5


def test_events_get_the_step_before_them(tmp_path: Path) -> None:
    """A crash is dated by the last step that was printed before it."""
    text = (
        PLAIN
        + 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
        + "ValueError: bad sample\n"
    )
    reading = read(tmp_path, text)
    assert [(e.line, e.step) for e in reading.events] == [(10, 50)]
    assert reading.ended == "crashed"


def test_a_failure_between_a_million_metrics(tmp_path: Path) -> None:
    """Lines that are read by layout are not searched for failures, but the ones between them are."""
    lines = [f"step {i} loss {i}.5\n" for i in range(13_000)]
    lines.insert(12_000, "RuntimeError: CUDA error: an illegal memory access was encountered\n")
    reading = read(tmp_path, "".join(lines[:12_001]))
    assert [(e.line, e.step) for e in reading.events] == [(12_001, 11_999)]
    assert len(reading.points) == 12_000


def test_one_line_of_many_megabytes(tmp_path: Path) -> None:
    """A bar redrawn into one line of megabytes is read, and a line of 2 MB without states is cut and reported."""
    frames = "\r".join(
        f" {i % 100}%|█         | {i}/200000 [00:10<01:30,  1.02it/s, loss={i / 1000:.3f}]" for i in range(1, 30_001)
    )
    reading = read(tmp_path, frames)
    assert len(points_of(reading)) == 30_000
    assert points_of(reading)[-1] == (30_000, 30.0)
    reading = read(tmp_path, "x" * 2_000_000 + "\n" + PLAIN)
    assert len(points_of(reading)) == 6
    assert any("longer" in problem.what for problem in reading.problems)


def test_lines_that_are_all_different(tmp_path: Path) -> None:
    """Where no two lines have the same words the simple pattern reads them, and the notes say how many."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, 7))) for _ in range(40_000)]
    reading = read(tmp_path, "".join(f"step {i}: loss={i / 100:.2f} {words[i]} {words[-i]}\n" for i in range(20_000)))
    assert points_of(reading) == [(i, float(f"{i / 100:.2f}")) for i in range(20_000)]
    assert any("simple pattern" in note for note in reading.notes)


def test_what_it_claims(tmp_path: Path) -> None:
    """Text by its ending and its first bytes; binary files and other endings are left to others."""
    assert TextReader.claims(Path("slurm-1.out"), b"step 1 loss 2\n")
    assert TextReader.claims(Path("train.stdout"), b"step 1 loss 2\n")
    assert TextReader.claims(Path("log"), b"step 1 loss 2\n")
    assert TextReader.claims(Path("a.LOG"), "größe\n".encode("latin-1"))
    assert TextReader.claims(Path("a.log"), "step 1\n".encode("utf-16"))
    assert not TextReader.claims(Path("a.csv"), b"step,loss\n")
    assert not TextReader.claims(Path("a.out"), bytes(range(32)) * 8)
    assert not TextReader.claims(Path("a.out"), b"")


def same(a: Reading, b: Reading) -> None:
    """Two readings are the same but for how they were got."""
    for name in ("step", "value", "wall_time", "rank"):
        np.testing.assert_array_equal(getattr(a.points, name), getattr(b.points, name))
    assert [a.points.tags[c] for c in a.points.code] == [b.points.tags[c] for c in b.points.code]
    assert [(e.kind, e.line, e.step, e.rank) for e in a.events] == [(e.kind, e.line, e.step, e.rank) for e in b.events]
    assert (a.ended, a.skipped, a.notes, a.facts) == (b.ended, b.skipped, b.notes, b.facts)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.floats(0, 1e4).map("{:.4f}".format),
    st.floats(0, 1e9).map("{:.3g}".format),
    st.integers(0, 10**12).map(str),
    st.integers(0, 10**7).map("{:,}".format),
    st.floats(1e-9, 1).map("{:.2E}".format),
    st.sampled_from(["nan", "inf", "-inf", "NaN", "0", "-0.0"]),
)
SHAPES = st.sampled_from(
    [
        "step {}: loss {}, lr {}",
        "2026-11-20 12:00:01,104 - INFO - step={} loss={} acc_1={}",
        "[rank3]: iter {} | loss {} | time {}ms",
        "W1120 20:33:57.237000 1574 torch/x.py:19] [0/2] retry {} of {} took {}",
        '{{"step": {}, "train/loss": {}, "top5": {}}}',
        "{{'loss': {}, 'grad_norm': {}, 'epoch': {}}}",
        " iteration {}/ 1000 | lm loss: {} | grad norm: {} |",
        "Epoch 3:  42%|████▏     | 42/{} [00:12<00:17,  3.40it/s, loss={}, lr={}]",
        "words only {} and {} of {}",
        "node{}:77 [0] NCCL INFO Channel {} via {}",
        "[rank{}]: iter {} | loss {}",
        "\x1b[32m12:00:01\x1b[0m | step={} \x1b[1mloss\x1b[0m={} acc_{}",
        "Epoch 1:  42%|██▏   | 42/{} [00:12<00:17, loss={}]\rEpoch 1:  43%|██▏   | 43/900 [00:12<00:17, loss={}]",
    ]
)


@SETTINGS
@given(
    st.lists(
        st.tuples(SHAPES, st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=80)),
        min_size=1,
        max_size=3,
    )
)
def test_by_layout_is_the_same_as_row_by_row(
    tmp_path: Path, parts: list[tuple[str, list[tuple[str, str, str]]]]
) -> None:
    """Reading rows of one layout by columns gives, bit for bit, what parsing each row gives."""
    text = "\n".join(shape.format(*numbers) for shape, rows in parts for numbers in rows)
    same(read(tmp_path, text, fast=True), read(tmp_path, text, fast=False))


LATIN = st.sampled_from(
    [
        "Größe {} für step {}: loss {}",
        "2026-11-20 12:00:01,104 - INFO - ä step={} loss={} acc_1={}",
        "fetched /data/{}.tar for gr\xf6\xdfe {} in {}",
        "step {}: loss {} °C {}",
        "Ã¶ iter {} | loss {} | time {}ms",
    ]
)


@SETTINGS
@given(
    st.lists(
        st.tuples(LATIN, st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=80)),
        min_size=1,
        max_size=3,
    )
)
def test_rows_in_latin_1_by_layout(tmp_path: Path, parts: list[tuple[str, list[tuple[str, str, str]]]]) -> None:
    """Rows that are not UTF-8 are read by columns as each alone is, wherever in them the other letters are."""
    data = "\n".join(shape.format(*numbers) for shape, rows in parts for numbers in rows).encode("latin-1")
    same(read(tmp_path, data, fast=True), read(tmp_path, data, fast=False))


@pytest.mark.parametrize("row", ["step {}: loss {} für", "für {}: fetched {} ö"])
def test_rows_in_latin_1_are_parsed_once(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike rows with letters of Latin-1 are not parsed one by one."""
    parsed = []
    parse = RowParser.records
    monkeypatch.setattr(RowParser, "records", lambda self, *row: [parsed.append(row), *parse(self, *row)][1:])
    read(tmp_path, "".join(row.format(1000 + i, 2000 + i) + "\n" for i in range(2_000)).encode("latin-1"))
    assert len(parsed) < 20


@SETTINGS
@given(
    st.lists(st.floats(allow_nan=False), min_size=60, max_size=60),
    st.sampled_from(["{!r}", "{:.3f}", "{:.6g}", "{:.12e}", "{:.15g}"]),
)
def test_numbers_are_exact(tmp_path: Path, numbers: list[float], style: str) -> None:
    """Every number is the double that float() reads from its text."""
    shown = [style.format(x) for x in numbers]
    reading = read(tmp_path, "".join(f"step {1000 + i} quantity={x}\n" for i, x in enumerate(shown)))
    assert [v for _, v in points_of(reading, "quantity")] == [float(x) for x in shown]


SAMPLE = (
    PLAIN
    + "\x1b[31mEpoch 1/3\x1b[0m\n 42%|████▏     | 42/100 [00:12<00:17,  3.40it/s, loss=0.41]\r"
    + " 43%|████▏     | 43/100 [00:12<00:17,  3.40it/s]"
    "\n{'loss': 0.5, 'grad_norm': nan, 'epoch': 0.1}\n| time/ |  |\n|  fps | 12 |\n-----\n"
    "epoch  loss  acc\n1  0.5  0.4\nTest Error: \n Accuracy: 4%\n"
    "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: x\nloss 1.5step 3: loss 2\0\0\x08\x08\n"
).encode()


@SETTINGS
@given(st.binary(max_size=600))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    """No content makes the reader fail."""
    assert isinstance(read(tmp_path, data), Reading)


@SETTINGS
@given(st.integers(0, len(SAMPLE)), st.integers(0, len(SAMPLE)), st.binary(max_size=8))
def test_any_cut(tmp_path: Path, start: int, end: int, noise: bytes) -> None:
    """A log may be cut anywhere, and have anything in the place of the cut."""
    assert isinstance(read(tmp_path, SAMPLE[:start] + noise + SAMPLE[end:]), Reading)


@SETTINGS
@given(st.lists(st.sampled_from([*SAMPLE.split(b"\n"), *PLAIN.encode().split(b"\n")]), max_size=60))
def test_any_interleaving(tmp_path: Path, lines: list[bytes]) -> None:
    """Lines of several writers in any order are read the same by layout and row by row."""
    data = b"\n".join(lines)
    same(read(tmp_path, data, fast=True), read(tmp_path, data, fast=False))


def test_metrics_after_a_long_listing(tmp_path: Path) -> None:
    """Metrics after thousands of lines that are all different are read as carefully as before."""
    rng = np.random.default_rng(0)
    listing = [
        "/data/" + "/".join("".join(map(chr, rng.integers(97, 123, 6))) for _ in range(3)) + ".jpg"
        for _ in range(9_000)
    ]
    metrics = [
        f"{{'loss': {10.0 ** -(i % 7):.{1 + i % 5}f}, 'learning_rate': {3e-4 / (1 + i):.{1 + i % 9}e}, "
        f"'epoch': {i / 100:.2f}}}"
        for i in range(3_000)
    ]
    junk = ["".join(map(chr, rng.integers(97, 123, 12))) for _ in range(9_000)]
    lines = [*listing, *(line for i, row in enumerate(metrics) for line in (row, *junk[3 * i : 3 * i + 3]))]
    path = tmp_path / "train.out"
    path.write_text("\n".join(lines) + "\n")
    fast, slow = read_text(path), read_text(path, fast=False)
    assert len(slow.points) == 9_000
    for name in ("step", "value", "wall_time", "rank"):
        np.testing.assert_array_equal(getattr(fast.points, name), getattr(slow.points, name))
    assert [fast.points.tags[c] for c in fast.points.code] == [slow.points.tags[c] for c in slow.points.code]


def test_block_by_block_is_the_same_as_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates of earlier blocks read later ones correctly, whatever the digits of names, lengths and days do."""
    monkeypatch.setattr("postmortem.readers.text.lines.blocks.BLOCK", 20_000)
    start = datetime(2025, 12, 31, 23, 40, tzinfo=UTC)
    lines = []
    for i in range(2_000):
        clock = start + timedelta(seconds=i)
        lines += [
            f"[rank{rank}]: step {i}: loss {9 - i / 300 + rank / 100:.4f}, time {700 + i % 90}.5ms"
            for rank in (0, 1, 2, 11)
        ]
        lines.append(f"{clock:%Y-%m-%d %H:%M:%S},{i % 1000:03d} - INFO - step={i} loss={9 - i / 300:.4f} lr=3.000e-04")
        lines.append(f"{clock:%Y-%m-%d %H:%M:%S},{i % 1000:03d} - INFO - step={i} lr=3.000e-04 loss={9 - i / 300:.4f}")
        lines.append(
            f"I{clock:%m%d %H:%M:%S}.{i:06d} 4242 train.py:{i % 7}] step {i} loss {'nan' if i % 97 == 5 else '1.25'}"
        )
        lines.append(f"step {i}: loss :.4571, time ;0.7" if i % 50 == 0 else f"step {i}: loss 0.4571, time 70.7")
    text = "\n".join(lines)
    same(read(tmp_path, text, fast=True), read(tmp_path, text, fast=False))
    assert (
        np.unique(read(tmp_path, text).points.wall_time // 86_400).size == 4
    )  # two days, one of them in two years as glog names none, and no time


@pytest.mark.parametrize("block", [2_000, 4 << 20])
def test_what_follows_a_repeated_warning_is_seen(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines after similar rows that may matter are searched, also in the next block."""
    monkeypatch.setattr("postmortem.readers.text.lines.blocks.BLOCK", block)
    warning = (
        "/opt/conda/lib/python3.11/site-packages/torch/autograd/graph.py:825: UserWarning: "
        "Grad strides do not match bucket view strides. "
        "This may indicate grad was not created according to the gradient layout contract\n"
        "grad.sizes() = [64, 32, 1, 1], strides() = [32, 1, 32, 32]\n"
        "bucket_view.sizes() = [64, 32, 1, 1], strides() = [32, 1, 1, 1] (Triggered internally at reducer.cpp:327.)\n"
    )
    path = tmp_path / "train.out"
    path.write_text(PLAIN * 200 + warning * 40 + PLAIN * 200)
    for fast in (True, False):
        (event,) = read_text(path, fast=fast).events
        assert event.kind == "ddp-stride"
        assert event.fields["grad_sizes"] == [64, 32, 1, 1]
        assert event.fields["bucket_strides"] == [32, 1, 1, 1]


def test_scores_of_two_held_out_sets_are_two_series(tmp_path: Path) -> None:
    """Their split word is put before the name that both print; a heading of split word and metric names the split."""
    (tmp_path / "a.log").write_text(
        "".join(
            f"Epoch {e} - loss: {9 - e}.5\nEpoch {e} - Validation BLEU: BLEU-1 7{e}.5, BLEU-2 6{e}.5\n"
            f"Epoch {e} - Dev BLEU: BLEU-1 5{e}.5, BLEU-2 4{e}.5\n"
            for e in range(1, 6)
        )
    )
    frame = postmortem.load(tmp_path / "a.log").frame
    found = {tag: rows["value"].tolist() for tag, rows in frame.groupby("tag", observed=True)}
    assert found["Validation BLEU-1"] == [71.5, 72.5, 73.5, 74.5, 75.5]
    assert found["Dev BLEU-2"] == [41.5, 42.5, 43.5, 44.5, 45.5]


@pytest.mark.parametrize("end", ["]", ", loss=0.5]"])
def test_a_print_behind_a_bar_is_a_row(tmp_path: Path, end: str) -> None:
    """A bar that was not closed leaves its line open: what is printed next stands behind it, with its own prefix."""
    bars = "".join(f"\rRunning: {n}0%|███   | {n}/10 [00:0{n}<00:01,  1.70it/s{end}" for n in range(1, 10))
    (tmp_path / "nohup.out").write_text(
        "".join(
            f"{bars}2019-06-26 01:44:22,266 - INFO - Epoch: {e}, accuracy: 0.9{e}, F1: 0.4{e}\n" for e in range(1, 8)
        )
    )
    frame = postmortem.load(tmp_path / "nohup.out").frame
    assert frame.loc[frame["tag"] == "accuracy", "value"].tolist() == [0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97]
    if end == "]":
        assert frame.loc[frame["tag"] == "F1", "step"].tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("first", "every", "step"), [(0, 1, 0), (1, 1, 0), (100, 100, 0), (5000, 100, 4900)])
def test_an_evaluation_before_the_first_step(tmp_path: Path, first: int, every: int, step: int) -> None:
    """It is a point one interval before the first step; the configuration printed there is none."""
    rows = "".join(
        f"step {first + i * every} | loss: {9 - i / 10:.3f}\n"
        + (f"validation loss: {8 - i / 10:.3f}\n" if i % 3 else "")
        for i in range(20)
    )
    (tmp_path / "a.log").write_text("lr: 0.001\nloss: 1.5\nvalidation loss: 10.95\n" + rows)
    frame = postmortem.load(tmp_path / "a.log").frame
    validation = frame[frame["tag"] == "validation loss"]
    assert (validation["step"].iloc[0], validation["value"].iloc[0]) == (step, 10.95)
    assert set(frame["tag"]) == {"loss", "validation loss"}
    assert len(frame[frame["tag"] == "loss"]) == 20


def test_phases_with_names_are_read(tmp_path: Path) -> None:
    """A few words before the epoch and the loss are no prose."""
    (tmp_path / "a.log").write_text(
        "".join(f"Pre-training layer final, epoch {i}, cost  {9 - i / 10:.4f}\n" for i in range(20))
    )
    assert postmortem.load(tmp_path / "a.log").frame["tag"].tolist() == ["cost"] * 20


def test_a_table_whose_rows_name_their_values(tmp_path: Path) -> None:
    """A .tsv without a header: ``print("step", step, "loss", loss, sep="\\t")``."""
    path = tmp_path / "loss.tsv"
    path.write_text("".join(f"step\t{k}\tloss\t{5 - k / 8}\n" for k in range(6)))
    scalars = postmortem.load(path).frame
    assert set(scalars.tag) == {"loss"}
    assert (scalars.step.tolist(), scalars.value.tolist()) == ([*range(6)], [5 - k / 8 for k in range(6)])


def test_a_last_number_at_the_end_of_a_sentence_is_whole(tmp_path: Path) -> None:
    """A second point is no part of a number, so a file that ends with it was not cut within the number."""
    rows = [f"Epoch {i}, Step 25, loss is {2 * 0.9**i!r}." for i in range(8)]
    reading = read(tmp_path, "\n".join(rows))
    assert [value for _, value in points_of(reading)] == [2 * 0.9**i for i in range(8)]
    assert not reading.problems


def test_nan_with_a_decimal_in_a_bar(tmp_path: Path) -> None:
    """Lightning fills the text of a number up with ".0", that of nan too."""
    states = "".join(
        f"\rEpoch 0:   5%|▌    | {i}/100 [00:0{i}<01:30,  1.06it/s, v_num=4, train_loss_step={loss}]"
        for i, loss in enumerate([0.5, 0.4, "nan.0", "nan.0", "nan.0", "nan.0"], start=1)
    )
    points = points_of(read(tmp_path, states + "\n"), "train_loss_step")
    assert [step for step, value in points if math.isnan(value)] == [3, 4, 5, 6]
