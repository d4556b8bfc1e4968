"""Compressed text logs and tables."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.readers.packed import PackedTable, PackedText, is_packed_log
from tests.readers.cases import usual_name

LOG = "".join(f"step {i} loss {3 - i / 100:.3f}\n" for i in range(2000)) + "RuntimeError: CUDA error: out of memory\n"
PACKED = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}
if importlib.util.find_spec("zstandard"):
    from zstandard import ZstdCompressor

    PACKED["zst"] = ZstdCompressor(write_checksum=True).compress
PROGRAMS = {"gz": "gzip", "xz": "xz", "bz2": "bzip2", "zst": "zstd"}
TABLES = {
    "metrics.csv": "step,loss,lr\n" + "".join(f"{i},{3 - i / 100 if i < 150 else 'nan'},0.1\n" for i in range(200)),
    "log.jsonl": "".join(f'{{"step": {i}, "loss": {3 - i / 100 if i < 150 else "NaN"}}}\n' for i in range(200)),
    "history.json": json.dumps(
        {"step": [*range(200)], "loss": [3 - i / 100 if i < 150 else float("nan") for i in range(200)]}
    ),
}


@usual_name(PackedText)
def name_of_a_file() -> str:
    return "train.log.gz"


@usual_name(PackedTable)
def name_of_a_table() -> str:
    return "metrics.csv.gz"


@pytest.mark.parametrize("name", ["train.err.gz", "train.out.gz", "slurm-4711.out.gz", "train.log.1.gz"])
def test_each_kind_of_text_may_be_compressed(tmp_path: Path, name: str) -> None:
    """The error output of a job as well as its output, and the parts of a log that were set aside."""
    (tmp_path / name).write_bytes(gzip.compress(LOG.encode()))
    assert len(postmortem.load(tmp_path).frame) == 2000


@pytest.mark.parametrize("ending", PACKED)
def test_a_compressed_log_is_read_like_the_log(tmp_path: Path, ending: str) -> None:
    """Its numbers and events are those of the text, and name the compressed file; two streams are one log."""
    path = tmp_path / f"train.log.{ending}"
    pack = PACKED[ending]
    path.write_bytes(pack(LOG[:9000].encode()) + pack(LOG[9000:].encode()))  # as `cat a.gz b.gz`
    run = postmortem.load(tmp_path)
    assert len(run.frame) == 2000
    assert run.frame["step"].iloc[-1] == 1999
    assert [(e.file, e.line) for e in run.event_list] == [(str(path), 2001)]
    assert run.problems == []
    assert (run.name, run.sources[0].kind) == (tmp_path.name, "text")


@pytest.mark.parametrize("ending", PROGRAMS)
def test_what_the_usual_programs_write(tmp_path: Path, ending: str) -> None:
    """A log of several megabytes that the command of the format packed, which may use several blocks and threads."""
    if ending not in PACKED or shutil.which(PROGRAMS[ending]) is None:
        pytest.skip(f"no {PROGRAMS[ending]} here")
    path = tmp_path / "slurm-4711.out"
    path.write_text("".join(f"step {i} loss {3 - i / 1e6:.6f} note {hash(i)}\n" for i in range(30_000)))
    subprocess.run([PROGRAMS[ending], "-q", path], check=True, timeout=60)
    path.unlink(missing_ok=True)
    run = postmortem.load(tmp_path)
    assert (len(run.series("loss")), run.problems) == (30_000, [])


@pytest.mark.parametrize("ending", PACKED)
def test_a_cut_file_keeps_what_can_be_unpacked(tmp_path: Path, ending: str) -> None:
    """The crash that ended the run, or a full disk, cut the file: the beginning is read, the loss is reported once."""
    path = tmp_path / f"a.out.{ending}"
    pack = PACKED[ending]
    packed = pack(LOG[:20_000].encode()) + pack(LOG[20_000:].encode())
    path.write_bytes(packed[: len(packed) * 4 // 5])
    run = postmortem.load(tmp_path)
    cut = [p for p in run.problems if p.lost == "the rest of the file"]
    assert 700 < len(run.frame) < 2000
    assert [p.what for p in cut] == [
        f"truncated: the {'zstd' if ending == 'zst' else PROGRAMS[ending]} data has no end"
    ]


@pytest.mark.parametrize("ending", PACKED)
def test_nothing_to_unpack(tmp_path: Path, ending: str) -> None:
    """Of a file that is damaged at its start one problem tells, and no advice to unpack it by hand."""
    path = tmp_path / f"a.log.{ending}"
    packed = PACKED[ending](LOG.encode())
    path.write_bytes(packed[:9] + b"\xff" * (len(packed) - 9))
    (problem,) = postmortem.load(tmp_path).problems
    assert ("damaged" in problem.what or "truncated" in problem.what, problem.kept) == (True, "nothing")


@pytest.mark.parametrize("ending", PACKED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_is_said(ending: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Wherever a byte is wrong or the file ends, the log is whole or a problem says that it is not."""
    text = "".join(f"step {i} loss {3 - i / 100:.3f}\n" for i in range(60))
    packed = bytearray(PACKED[ending](text.encode()))
    at = data.draw(st.integers(0, len(packed) - 1))
    if data.draw(st.booleans()):
        packed[at] ^= data.draw(st.integers(1, 255))
    else:
        del packed[at:]
    path = tmp_path_factory.mktemp("damage") / f"train.log.{ending}"
    path.write_bytes(packed)
    reading = PackedText.read(path)
    numbers = list(zip(reading.points.step.tolist(), reading.points.value.tolist(), strict=True))
    whole = numbers == [(i, round(3 - i / 100, 3)) for i in range(60)]
    assert whole or reading.problems


def test_a_bomb_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may unpack to any size: reading stops at a limit, and says so."""
    monkeypatch.setattr("postmortem.readers.packed._LONGEST", 1 << 20)
    for ending, pack in PACKED.items():
        path = tmp_path / f"train.log.{ending}"
        path.write_bytes(pack(LOG.encode() + (b"x" * 1023 + b"\n") * (1 << 12)))
        assert any("unpacks to more than" in p.what for p in PackedText.read(path).problems)


def test_other_compressed_files_are_left_alone(tmp_path: Path) -> None:
    """Data in a .gz file is no log, whatever it is called, and there is nothing to say of an empty log."""
    assert not PackedText.claims(Path("weights.gz"), gzip.compress(LOG.encode()))
    assert not PackedText.claims(Path("train.log.gz"), gzip.compress(b"\0\1\2\3" * 1000))
    assert not PackedText.claims(Path("train.log.gz"), b"step 1 loss 2\n")
    (tmp_path / "train.log").write_text(LOG)
    for ending, pack in PACKED.items():
        (tmp_path / f"train.log.1.{ending}").write_bytes(pack(b""))
    assert len(postmortem.load(tmp_path).frame) == 2000
    assert postmortem.load(tmp_path).problems == []
    assert [p.what for p in postmortem.load(tmp_path / "train.log.1.gz").problems] == ["the file is empty"]


def test_names() -> None:
    """Logs, and the parts that logrotate and loggers set aside."""
    yes = ["a.log.gz", "A.OUT.XZ", "a.log.1.zst", "a.log.2026-05-01.xz", "a.log-20260501.gz", "a.err.bz2"]
    assert [n for n in yes if not is_packed_log(n)] == []
    assert [n for n in ["a.csv.gz", "a.pt.xz", "log", "a.log", "a.log.7z", ".gz"] if is_packed_log(n)] == []


def test_without_zstandard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postmortem: object) -> None:
    """A log that needs the extra is named with it, and the scan does not call the rest of the folder clean."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "train.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    called = postmortem("scan", tmp_path)  # type: ignore[operator]
    assert called.code == 2
    assert "compressed with zstd; decompress it first, or install the extra [zstd]" in called.err


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("ending", PACKED)
def test_a_compressed_table_is_read_like_the_table(tmp_path: Path, name: str, ending: str) -> None:
    """Its numbers, their source and the verdict are those of the table; a problem would name the compressed file."""
    (tmp_path / f"{name}.{ending}").write_bytes(PACKED[ending](TABLES[name].encode()))
    (report,) = postmortem.scan(tmp_path).runs
    assert (report.verdict, [(f.name, f.tag, f.step) for f in report.findings][:1]) == (
        "failed",
        [("nan-onset", "loss", 150)],
    )
    run = postmortem.load(tmp_path)
    assert (run.sources[0].kind, len(run.series("loss")), run.problems) == (Path(name).suffix[1:], 200, [])
    assert run.sources[0].files == (str(tmp_path / f"{name}.{ending}"),)


@pytest.mark.parametrize("at", range(30, 70))
def test_a_table_that_is_cut_in_its_header_line_is_said(at: int, tmp_path: Path) -> None:
    """What is left of the first line is no table."""
    (tmp_path / "metrics.csv.gz").write_bytes(PACKED["gz"](TABLES["metrics.csv"].encode())[:at])
    problems = postmortem.load(tmp_path).problems
    assert [p.what for p in problems if "truncated" in p.what]


@pytest.mark.parametrize("ending", PACKED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_of_a_table_is_said(
    ending: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever a byte of it is wrong or the file ends, a scan of a compressed table has all rows or a problem."""
    packed = bytearray(PACKED[ending](TABLES["metrics.csv"].encode()))
    at = data.draw(st.integers(0, len(packed) - 1))
    if data.draw(st.booleans()):
        packed[at] ^= data.draw(st.integers(1, 255))
    else:
        del packed[max(1, at) :]
    folder = tmp_path_factory.mktemp("damage")
    (folder / f"metrics.csv.{ending}").write_bytes(packed)
    run = postmortem.load(folder)
    assert run.n_points == 400 or run.problems


def test_tables_of_data_stay_silent(tmp_path: Path, postmortem: object) -> None:
    """A compressed table without a metric is as little a run as the table itself, and neither is one of `export`."""
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "people.csv.gz").write_bytes(gzip.compress(b"name,age\nAnn,31\n"))
    (tmp_path / "labels.json.xz").write_bytes(lzma.compress(b'{"a": [1, 2], "b": {"c": 3}}'))
    postmortem("export", tmp_path, "-o", tmp_path / "all.csv")  # type: ignore[operator]
    (tmp_path / "all.csv.gz").write_bytes(gzip.compress((tmp_path / "all.csv").read_bytes()))
    called = postmortem("scan", "--format", "json", tmp_path)  # type: ignore[operator]
    document = json.loads(called.out)
    assert [len(document["runs"]), document["runs"][0]["problems"]] == [1, []]


def test_a_copy_that_was_packed_beside_the_table(tmp_path: Path) -> None:
    """`gzip --keep` leaves two files with the same rows: one run, each number once in what is shown of it."""
    text = TABLES["metrics.csv"]
    (tmp_path / "metrics.csv").write_text(text)
    (tmp_path / "metrics.csv.gz").write_bytes(gzip.compress(text.encode()))
    (report,) = postmortem.scan(tmp_path).runs
    assert report.run is not None
    assert len(report.run.series("loss")) == 200
