"""Runs in MLflow's folder store."""

from __future__ import annotations

from pathlib import Path

import postmortem
from postmortem.readers.mlflow import MLflow
from tests.readers.cases import usual_name


@usual_name(MLflow)
def name_of_a_file() -> str:
    return "meta.yaml"


def store(root: Path, run: str = "0a1b", status: int = 3) -> Path:
    folder = root / "mlruns" / "1" / run
    for part in ("metrics/val", "params", "tags", "artifacts"):
        (folder / part).mkdir(parents=True)
    (root / "mlruns" / "1" / "meta.yaml").write_text("experiment_id: '1'\nname: exp\n")
    (folder / "meta.yaml").write_text(
        f"end_time: 1700000099000\nrun_id: {run}\nrun_name: brave-fox-1\nstart_time: 1700000000000\nstatus: {status}\n"
    )
    rows = [(1700000000000 + 1000 * i, 3 - i / 50, i) for i in range(100)]
    (folder / "metrics" / "loss").write_text("".join(f"{t} {'nan' if i > 60 else v} {i}\n" for t, v, i in rows))
    (folder / "metrics" / "val" / "loss").write_text("".join(f"{t} {v} {i} data 1f2e\n" for t, v, i in rows[::10]))
    (folder / "params" / "lr").write_text("0.001")
    (folder / "tags" / "mlflow.runName").write_text("brave-fox-1")
    return folder


def test_a_store_is_one_run(tmp_path: Path) -> None:
    """All metrics of the folder are one run with its configuration; the file of a metric is no log of its own."""
    store(tmp_path)
    report = postmortem.scan(tmp_path)
    (judged,) = report.runs
    assert judged.verdict == "failed"
    assert [(f.name, f.tag, f.step) for f in judged.findings][:1] == [("nan-onset", "loss", 61)]
    run = postmortem.load(tmp_path)
    assert {tag: run.roles[tag] for tag in ("loss", "val/loss")} == {"loss": "loss", "val/loss": "val_loss"}
    assert run.config == {"lr": "0.001"}
    assert run.ended == "completed"
    assert run.frame["wall_time"].iloc[0] == 1700000000.0


def test_runs_of_one_experiment_stay_apart(tmp_path: Path) -> None:
    """Each run folder is a run; one that MLflow calls failed has crashed."""
    store(tmp_path, "0a1b")
    store(tmp_path / "other", "2c3d", status=4)
    runs = postmortem.scan(tmp_path).runs
    assert sorted(run.ended for run in runs) == ["completed", "crashed"]


def test_damaged_lines_and_old_files(tmp_path: Path) -> None:
    """A line that is cut is reported; values without a step, as old versions wrote them, are counted."""
    folder = store(tmp_path)
    (folder / "metrics" / "loss").write_text("1700000000000 2.5\n1700000001000 2.4\n17000000\n")
    run = postmortem.load(tmp_path)
    loss = run.frame[run.frame["tag"] == "loss"]
    assert loss["step"].tolist() == [0, 1]
    assert [(Path(p.path).name, p.line) for p in run.problems] == [("loss", 3)]
