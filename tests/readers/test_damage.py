"""Cuts, flipped bits and blanks in a file of each reader: nothing is lost in silence, no wrong value without a Problem.

A few hundred cases of each kind; DAMAGE_CASES=2000 tries more.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from postmortem.readers import READERS
from tests.readers.aim.test_aim import RUNS, repository
from tests.readers.tensorboard.test_tensorboard import scalar, write
from tests.readers.test_mlflow import store
from tests.readers.test_mlflow_database import STORES
from tests.readers.wandb.test_wandb import history, log_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.reading import Reading

CASES = int(os.environ.get("DAMAGE_CASES", "150"))
ROWS = 40
LOSS = [round(2 - i / 25 + (i * 7 % 5) / 100, 4) for i in range(ROWS)]


def event_file(folder: Path) -> bytes:
    return write(
        folder / "whole", [scalar(tag, i, LOSS[i] / (1 + k)) for i in range(ROWS) for k, tag in enumerate("ab")]
    )


def rows_of(form: str) -> bytes:
    return "".join(form.format(i=i, loss=LOSS[i], lr=0.001 / (1 + i)) for i in range(ROWS)).encode()


def trainer_state(folder: Path) -> bytes:
    log = [{"step": i, "loss": LOSS[i], "learning_rate": 0.001 / (1 + i)} for i in range(ROWS)]
    return json.dumps({"global_step": ROWS - 1, "log_history": log}, indent=1).encode()


def metric_of_a_store(folder: Path) -> bytes:
    """One metric of MLflow's folder store, whose run is read by its meta.yaml."""
    run = store(folder, "0a1b")
    (run / "metrics" / "val" / "loss").unlink()
    return "".join(f"{1700000000000 + 1000 * i} {LOSS[i % ROWS]} {i}\n" for i in range(2 * ROWS)).encode()


def table_of_a_repository(folder: Path) -> bytes:
    """The numbers of one run in a repository of Aim, whose run is read by its CURRENT."""
    return (repository(folder) / AIM_TABLE).read_bytes()


def samples_of_a_monitor(_: Path) -> bytes:
    line = "2026/01/01 00:{minute:02d}:{second:02d}.000, 0, {busy} %, {memory} MiB\n"
    rows = (line.format(minute=i // 2, second=30 * (i % 2), busy=90 + i % 7, memory=12000 + i) for i in range(ROWS))
    return ("timestamp, index, utilization.gpu [%], memory.used [MiB]\n" + "".join(rows)).encode()


CSV = "{i},{loss},{lr:.6f}\n"
AIM_TABLE = f"seqs/chunks/{RUNS['healthy']}/000009.sst"
SUMMED = {"tensorboard", "wandb", "packed", "packed-table", "aim"}
"""Readers of formats with checksums: elsewhere a changed digit is a number like any other."""
FILES: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "tensorboard": ("events.out.tfevents.1.host.1.0", event_file),
    "wandb": (
        "run-a.wandb",
        lambda _: log_file([history(i, loss=LOSS[i], lr=0.001, _timestamp=1e9 + i) for i in range(ROWS)])[0],
    ),
    "wandb_history": (
        "wandb-history.jsonl",
        lambda _: rows_of('{{"_step": {i}, "loss": {loss}, "lr": {lr:.6f}}}\n'),
    ),
    "csv": ("metrics.csv", lambda _: b"step,loss,lr\n" + rows_of(CSV)),
    "jsonl": ("metrics.jsonl", lambda _: rows_of('{{"step": {i}, "loss": {loss}, "lr": {lr:.6f}}}\n')),
    "json": ("history.json", lambda _: json.dumps({"step": list(range(ROWS)), "loss": LOSS}).encode()),
    "trainer_state": ("trainer_state.json", trainer_state),
    "text": ("train.log", lambda _: rows_of("step {i} | loss {loss} | lr {lr:.6f}\n")),
    "packed": ("train.log.gz", lambda _: gzip.compress(rows_of("step {i} | loss {loss} | lr {lr:.6f}\n"))),
    "mlflow": ("mlruns/1/0a1b/metrics/loss", metric_of_a_store),
    "mlflow-db": ("mlflow.db", lambda _: lzma.decompress((STORES / "mlflow.db.xz").read_bytes())),
    "wandb_summary": (
        "wandb-summary.json",
        lambda _: json.dumps({"_step": 9, **{f"loss{i}": LOSS[i] for i in range(ROWS)}}).encode(),
    ),
    "aim": (f".aim/{AIM_TABLE}", table_of_a_repository),
    "nvidia-smi": ("gpu.csv", samples_of_a_monitor),
    "packed-table": ("metrics.csv.gz", lambda _: gzip.compress(b"step,loss,lr\n" + rows_of(CSV))),
}


READ = {"mlflow": "mlruns/1/0a1b/meta.yaml", "aim": f".aim/meta/chunks/{RUNS['healthy']}/CURRENT"}
"""The file that is read, where it is not the damaged one."""
ONLY_CUT = {"mlflow-db"}
"""Without checksums, and numbers in binary: a byte that changed is a number like any other."""


def values_of(reading: Reading) -> Counter[tuple[Any, ...]]:
    points = reading.points
    steps = points.step.tolist() if reading.step_axis != "row" else [None] * len(points)
    return Counter(
        (points.tags[c], s, v) for c, s, v in zip(points.code.tolist(), steps, points.value.tolist(), strict=True)
    )


def damaged(kind: str, data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    if kind == "cut":
        return data[:at]
    if kind == "blank":
        size = random.choice((1, 7, 30, 512))
        return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def test_every_reader_has_a_case() -> None:
    """A new reader comes with its damaged file."""
    assert {reader.kind for reader in READERS} == FILES.keys()


@pytest.mark.parametrize("kind", ["cut", "blank", "flip"])
@pytest.mark.parametrize("source", FILES)
def test_damage_is_said(source: str, kind: str, tmp_path: Path) -> None:
    """A value that the file did not hold, or one that is lost, comes with a Problem.

    A file that is cut between two lines or records is whole; a bit that flips in text is not known to be damage.
    """
    if (kind == "flip" and source not in SUMMED) or (kind != "cut" and source in ONLY_CUT):
        pytest.skip("no checksums")
    name, make = FILES[source]
    reader: Any = READERS[source]
    data = make(tmp_path)
    (tmp_path / name).write_bytes(data)
    asked = run_in(source, tmp_path / READ.get(source, name))
    whole = values_of(reader.read(asked))
    assert sum(whole.values()) >= (ROWS if source in ("json", "wandb_summary") else 2 * ROWS - 2)
    random = Random(f"{source} {kind}")
    for _ in range(CASES):
        bad = damaged(kind, data, random)
        (tmp_path / name).write_bytes(bad)
        reading = reader.read(asked)
        found = values_of(reading)
        if reading.problems or bad == data:
            continue
        lost = whole - found
        if kind == "cut":
            # before a line end all numbers of the line are there, as a comparison with the lines before it shows;
            # the first line of all has none before it
            known = ends_whole(source, bad) or data[len(bad) :][:1] == b"\n" or bad.count(b"\n") < 2
            assert known, (len(bad), bad[-40:])
        elif source in ("tensorboard", "wandb") or kind == "blank":
            assert not lost, (bad, lost)
        axis = {(tag, value) for tag, _, value in whole}
        assert all((tag, value) in axis for tag, _, value in found), found - whole


def run_in(source: str, path: Path) -> Path:
    """The path of the run in a file that holds several, else the file."""
    reader: Any = READERS[source]
    return reader.runs(path)[0] if hasattr(reader, "runs") else path


def ends_whole(source: str, data: bytes) -> bool:
    """Whether a cut is at the end of a line or of a record."""
    if source == "tensorboard":
        at = 0
        while at < len(data):
            at += 16 + int.from_bytes(data[at : at + 8], "little")
        return at == len(data)
    if source == "wandb":
        at = 7
        while at < len(data):
            at += 7 + int.from_bytes(data[at + 4 : at + 6], "little")
        return at == len(data)
    return data.endswith((b"\n", b"}")) or data == b""
