"""Which files are logs, by their first bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem
from postmortem.api import exit_code

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
    assert problem.what.startswith(f"5300 NUL bytes in the text in 2 places, the first at byte {len(TEXT)}, ")
    assert problem.kept == "the text before, between and after them"
    assert problem.lost == "what was written there, if anything"


@pytest.mark.parametrize("name", ["train.log", "metrics.csv", "metrics.jsonl"])
def test_a_hole_at_the_end(tmp_path: Path, name: str) -> None:
    """Nothing follows it: only what is before it is said to be read."""
    (tmp_path / name).write_bytes(LOGS[name] + bytes(50))
    (problem,) = postmortem.load(tmp_path).problems
    assert problem.kept == f"the text before byte {len(LOGS[name])}"


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
@pytest.mark.parametrize(("nuls", "verdict"), [(1, "healthy"), (100, "healthy"), (1000, "suspect")])
def test_nuls_inside_a_text(tmp_path: Path, name: str, nuls: int, verdict: str) -> None:
    """A hole is reported in the same words for each format; one that may hold many rows costs the verdict."""
    middle = LOGS[name].index(b"\n", len(LOGS[name]) // 2) + 1
    (tmp_path / name).write_bytes(LOGS[name][:middle] + bytes(nuls) + LOGS[name][middle:])
    (problem,) = postmortem.load(tmp_path).problems
    number = f"1 NUL byte in the text, at byte {middle}"
    if nuls > 1:
        number = f"{nuls} NUL bytes in the text, from byte {middle} to byte {middle + nuls - 1}"
    assert (problem.offset, problem.what) == (middle, f"{number}, possibly from a system crash")
    assert problem.kept == f"the text before byte {middle} and from byte {middle + nuls} on"
    (report,) = postmortem.scan(tmp_path).runs
    assert (report.verdict, [finding.name for finding in report.findings]) == (verdict, ["corrupt-record"])


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
    (tmp_path / "metrics.csv").write_bytes("step,loss\n1,2\0\n2,1\n".encode("utf-16-le"))
    assert postmortem.load(tmp_path).problems[0].kept == "the text before byte 26 and from byte 28 on"


@pytest.mark.parametrize("name", ["notes.md", "train.dat"])
def test_a_named_text_is_a_log_whatever_its_ending(tmp_path: Path, name: str) -> None:
    """Who names a file says that it is a log; in a folder its ending decides."""
    (tmp_path / name).write_bytes(TEXT)
    assert len(postmortem.load(tmp_path / name).frame.query("tag == 'loss'")) == len(ROWS)
    (tmp_path / "other.log").write_bytes(TEXT)
    (report,) = postmortem.scan(tmp_path).runs
    assert [Path(file).name for source in report.sources for file in source.files] == ["other.log"]


@pytest.mark.parametrize(
    ("name", "content"), [("train.py", TEXT), ("config.yaml", TEXT), ("model.bin", bytes(range(256)))]
)
def test_source_code_settings_and_binary_files_are_no_logs(tmp_path: Path, name: str, content: bytes) -> None:
    """Also where the command names them; that they are not read is a problem."""
    (tmp_path / name).write_bytes(content)
    report = postmortem.scan(tmp_path / name)
    assert not report.runs
    assert report.problems


def rows(first: int, last: int) -> str:
    return "".join(f"step {i} loss {2 / (1 + i / 100):.4f} lr 1.0e-04\n" for i in range(first, last))


@pytest.mark.parametrize(
    "names",
    [
        ("train.log.10", "train.log.2", "train.log.1", "train.log"),
        ("train.log.2024-05-01", "train.log.2024-05-02", "train.log"),
        ("train.log-20240501", "train.log-20240502", "train.log"),
        ("slurm-4711.out.2", "slurm-4711.out.1", "slurm-4711.out"),
    ],
    ids=lambda names: names[0],
)
def test_parts_of_a_log_that_were_set_aside_are_its_beginning(names: tuple[str, ...], tmp_path: Path) -> None:
    """A logger or logrotate renames a full log; its parts are one log, the oldest first."""
    for i, name in enumerate(names):
        (tmp_path / name).write_text(rows(100 * i, 100 * i + 100))
    (run,) = postmortem.scan(tmp_path).runs
    assert (run.verdict, run.first_step, run.last_step, run.findings) == ("healthy", 0, 100 * len(names) - 1, ())
    assert [Path(name).name for name in run.sources[0].files] == list(names)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.out.bak", TEXT),
        ("metrics.csv.old", LOGS["metrics.csv"]),
        ("train.log~", TEXT),
        ("metrics.csv.zip", b"PK\x03\x04 and more"),
        ("run-1.wandb.gz", b"\x1f\x8b and more"),
        ("metrics.jsonl.1", LOGS["metrics.jsonl"]),
        ("metrics.parquet", b"PAR1 and more"),
        ("history.pkl", b"\x80\x04 and more"),
        ("train_loss.npy", b"\x93NUMPY and more"),
        ("history.json", b'{"loss": [2.5, 1.25, 0.5], "accuracy": [0.1, 0.5,'),
        ("log.json", b'[{"epoch": 1, "loss": 0.5}, {"epoch": 2, "lo'),
        ("history.json", b"[2.3, 2.1, 1.9, 1.8]"),
        ("loss_curve.json", b"[[0, 2.3], [1, NaN]]"),
        (".attempt2/train.out", TEXT),
    ],
)
def test_files_with_numbers_that_are_not_read_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    """Beside a healthy run they change no verdict; they are listed, and alone they are no empty folder."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (problem,) = postmortem.scan(tmp_path).problems
    assert (Path(problem.path).name, problem.kind) == (Path(name).parts[0], "skipped")
    (tmp_path / "train.log").write_bytes(TEXT)
    report = postmortem.scan(tmp_path)
    assert ([run.verdict for run in report.runs], report.problems) == (["healthy"], (problem,))
    assert exit_code(report, "error") == 0


@pytest.mark.parametrize("name", ["metrics.parquet", "history.pkl", "train.out.bak"])
def test_a_run_whose_only_numbers_were_not_read_is_not_judged(name: str, tmp_path: Path) -> None:
    """Its log holds no metrics; those of the file beside it were not looked at."""
    (tmp_path / name).write_bytes(TEXT if name.endswith(".bak") else b"PAR1 and more")
    (tmp_path / "train.log").write_text("loading the model\nstarting\ndone\n")
    report = postmortem.scan(tmp_path)
    assert ([run.verdict for run in report.runs], exit_code(report, "error")) == (["not-judged"], 3)
    assert [(Path(problem.path).name, problem.kind) for problem in report.problems] == [(name, "skipped")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"loss": "mse", "learning_rate": 0.1, "betas": [0.9, 0.99], "steps": 100}'),
        ("eval_results.json", b'{"eval_loss": 0.5, "epoch": 3}'),
        ("data.json", b'[{"id": 1, "text": "a", "score": 0.5}]'),
        ("losses.json", b'[{"id": 1, "loss": 0.5}, {"id": 2, "loss": 0.25}]'),
        ("folds.json", b'{"fold": [1, 2, 3], "accuracy": [0.5, 0.25, 0.75]}'),
        ("weights.json", b'{"loss_weights": [1.0, 0.5], "layers": [64, 64]}'),
        ("train-00000.parquet", b"PAR1 and more"),
        ("vocab.pkl", b"\x80\x04 and more"),
        ("classes.json", b"[1, 2, 3]"),
        ("log_names.json", b'[1, "a"]'),
        ("weights.npz", b"PK\x03\x04 and more"),
        ("model.safetensors.bak", b"weights"),
        (".hydra/config.yaml", b"lr: 0.1\n"),
        ("train.py.bak", b"loss = 1\n"),
    ],
)
def test_other_files_are_passed_over(name: str, content: bytes, tmp_path: Path) -> None:
    """Settings, data and weights beside a run are not its log."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "train.log").write_bytes(TEXT)
    assert postmortem.scan(tmp_path).problems == ()


def test_a_backup_is_read_where_it_is_named(tmp_path: Path) -> None:
    """The user who names a backup copy wants it read."""
    (tmp_path / "metrics.csv.bak").write_bytes(LOGS["metrics.csv"])
    (run,) = postmortem.scan(tmp_path / "metrics.csv.bak").runs
    assert (run.verdict, run.last_step) == ("healthy", 1999)
