"""Which files are logs, by their first bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem

ROWS = [(step, 2 - 0.001 * step) for step in range(2000)]
TEXT = "".join(f"step {step} loss {loss:.3f} lr 1.0e-04\n" for step, loss in ROWS).encode()
LOGS = {
    "train.log": TEXT,
    "train.txt": TEXT,
    "metrics.csv": b"step,loss\n" + "".join(f"{step},{loss:.3f}\n" for step, loss in ROWS).encode(),
    "metrics.jsonl": "".join(f'{{"step": {step}, "loss": {loss:.3f}}}\n' for step, loss in ROWS).encode(),
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("nuls", [4096, 100_000])
def test_a_log_that_was_truncated_under_its_writer(tmp_path: Path, name: str, nuls: int) -> None:
    """NUL bytes where the truncated part was: what follows is read, and only what stood there is reported as lost."""
    (tmp_path / name).write_bytes(bytes(nuls) + LOGS[name])
    run = postmortem.load(tmp_path)
    frame = run.frame.query("tag == 'loss'")
    assert list(frame["step"]) == [step for step, _ in ROWS]
    assert list(frame["value"]) == pytest.approx([loss for _, loss in ROWS])
    (problem,) = run.problems
    assert (problem.offset, problem.lost) == (0, "what was written there, if anything")
    assert problem.what == (
        f"{nuls} NUL bytes before the text: the file was truncated while it was written, or the system crashed"
    )
    (report,) = postmortem.scan(tmp_path).runs
    assert (report.verdict, [finding.name for finding in report.findings]) == ("healthy", ["truncated-file"])
    assert run.event_list == []


def test_a_sparse_log(tmp_path: Path) -> None:
    """The hole that a truncated log begins with may be larger than any memory; it is not read."""
    with (tmp_path / "train.log").open("wb") as file:
        file.seek(1 << 32)
        file.write(TEXT)
    run = postmortem.load(tmp_path)
    assert len(run.frame.query("tag == 'loss'")) == len(ROWS)
    assert run.problems[0].what.startswith(f"{1 << 32} NUL bytes")


def test_holes_in_a_text(tmp_path: Path) -> None:
    """All NUL bytes count, in as many places as there are, and the text on both sides is read."""
    (tmp_path / "train.log").write_bytes(TEXT + bytes(5000) + b"\nstep 2000 loss 0.1\n" + bytes(300) + b"\n")
    run = postmortem.load(tmp_path)
    assert run.frame["step"].max() == 2000
    (problem,) = run.problems
    assert (problem.offset, problem.line) == (len(TEXT), 2001)
    assert problem.what.startswith("5300 NUL bytes in the text in 2 places")
    assert problem.lost == "what was written there, if anything"


def test_zeros_alone(tmp_path: Path) -> None:
    """A log that contains only zero bytes is reported as such, whatever its size."""
    for name in ("short.log", "long.log"):
        (tmp_path / name).write_bytes(bytes(5000 if name == "short.log" else 3 << 20))
    problems = postmortem.load(tmp_path).problems
    assert {p.what for p in problems} == {"contains only NUL bytes, as left by a system crash"}
    assert len(problems) == 2


@pytest.mark.parametrize(("data", "offset"), [("step,loss\n1,2\0\n".encode("utf-16"), 28), (b"step,loss\n1,2\0\n", 13)])
def test_the_offset_of_a_nul_in_a_table(tmp_path: Path, data: bytes, offset: int) -> None:
    """A NUL is reported with its place in the file; the zero bytes of UTF-16 are not."""
    (tmp_path / "metrics.csv").write_bytes(data)
    (problem,) = postmortem.load(tmp_path).problems
    assert (problem.offset, problem.what[:11]) == (offset, "1 NUL byte ")


@pytest.mark.parametrize("name", ["train.log", "metrics.csv", "metrics.jsonl"])
@pytest.mark.parametrize("nuls", [1, 100])
def test_nuls_inside_a_text(tmp_path: Path, name: str, nuls: int) -> None:
    """A hole is reported in the same words for each format, as damage that costs the verdict."""
    middle = LOGS[name].index(b"\n", len(LOGS[name]) // 2) + 1
    (tmp_path / name).write_bytes(LOGS[name][:middle] + bytes(nuls) + LOGS[name][middle:])
    (problem,) = postmortem.load(tmp_path).problems
    number = "1 NUL byte" if nuls == 1 else "100 NUL bytes"
    assert (problem.offset, problem.what) == (middle, f"{number} in the text, possibly from a system crash")
    (report,) = postmortem.scan(tmp_path).runs
    assert (report.verdict, [finding.name for finding in report.findings]) == ("suspect", ["corrupt-record"])


@pytest.mark.parametrize("nuls", [1000, 100_000])
def test_a_first_line_cut_after_nuls(tmp_path: Path, nuls: int) -> None:
    """JSON lines that begin inside an object are read from the next line on; the cut line is a Problem."""
    (tmp_path / "metrics.jsonl").write_bytes(bytes(nuls) + LOGS["metrics.jsonl"][10:])
    run = postmortem.load(tmp_path)
    assert list(run.frame.query("tag == 'loss'")["step"]) == [step for step, _ in ROWS[1:]]
    assert [(p.line, p.lost) for p in run.problems] == [(None, "what was written there, if anything"), (1, "1 line")]
    assert run.problems[1].what == "truncated: the first line is not a complete JSON object"


@pytest.mark.parametrize("nuls", [1000, 100_000])
def test_a_table_without_its_header_after_nuls(tmp_path: Path, nuls: int) -> None:
    """A table whose header was in the truncated part cannot be read, which is a Problem."""
    (tmp_path / "train.log").write_bytes(TEXT)
    (tmp_path / "metrics.csv").write_bytes(bytes(nuls) + LOGS["metrics.csv"][11:])
    (problem,) = postmortem.scan(tmp_path).problems
    assert (problem.what, problem.lost) == ("begins with NUL bytes, and no reader knows what follows", "the file")


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_wide_encodings(tmp_path: Path, name: str, encoding: str) -> None:
    """NUL bytes of the encoding are not damage, with or without a byte order mark."""
    (tmp_path / name).write_bytes(LOGS[name].decode().encode(encoding))
    run = postmortem.load(tmp_path)
    assert list(run.frame.query("tag == 'loss'")["step"]) == [step for step, _ in ROWS]
    assert run.problems == []


def test_a_nul_in_utf_16_without_a_mark(tmp_path: Path) -> None:
    """A NUL character is reported with its place, and the other zero bytes are not counted."""
    (tmp_path / "metrics.csv").write_bytes("step,loss\n1,2\0\n".encode("utf-16-le"))
    (problem,) = postmortem.load(tmp_path).problems
    assert (problem.offset, problem.what[:11]) == (26, "1 NUL byte ")


@pytest.mark.parametrize("name", ["notes.md", "train.dat"])
def test_a_named_text_is_a_log_whatever_its_ending(tmp_path: Path, name: str) -> None:
    """Who names a file says that it is a log; in a folder its ending decides."""
    (tmp_path / name).write_bytes(TEXT)
    assert len(postmortem.load(tmp_path / name).frame.query("tag == 'loss'")) == len(ROWS)
    (tmp_path / "other.log").write_bytes(TEXT)
    (report,) = postmortem.scan(tmp_path).runs
    assert [Path(file).name for source in report.sources for file in source.files] == ["other.log"]


@pytest.mark.parametrize(("name", "content"), [("train.py", TEXT), ("config.yaml", TEXT), ("model.bin", bytes(range(256)))])
def test_source_code_settings_and_binary_files_are_no_logs(tmp_path: Path, name: str, content: bytes) -> None:
    """Also where the command names them; that they are not read is a problem."""
    (tmp_path / name).write_bytes(content)
    report = postmortem.scan(tmp_path / name)
    assert not report.runs
    assert report.problems
