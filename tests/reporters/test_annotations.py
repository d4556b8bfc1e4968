"""`postmortem annotate`: what TensorBoard and W&B then show, and that nothing of the user's changes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import postmortem as pm
from postmortem.core.errors import NotFoundError
from postmortem.reporters.annotations import folder_of
from postmortem.reporters.annotations.wandb_run import summary_of, write_to_wandb


def contents(folder: Path) -> dict[str, str]:
    """A checksum of every file of the user's."""
    files = [f for f in folder.rglob("*") if f.is_file() and "postmortem-notes" not in f.parts]
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture
def copy(sample_runs, tmp_path):
    """Makes a sample run that may be written into."""

    def made(name: str) -> Path:
        return Path(shutil.copytree(sample_runs / name, tmp_path / name))

    return made


@pytest.fixture
def accumulator():
    """TensorBoard's own reader."""
    return pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator


def test_tensorboard_reads_texts_and_marks(copy, postmortem, accumulator):
    """The report as a text at the last step, and for each finding a text and a point at its own step."""
    run = copy("nan-log-of-zero")
    before = contents(run)
    called = postmortem("annotate", run)
    assert called.code == 0
    (file,) = (run / "postmortem-notes").iterdir()
    assert called.out == f"wrote {file}\n"
    assert contents(run) == before
    read = accumulator(str(file)).Reload()
    tags = read.Tags()
    assert sorted(tags["scalars"]) == [
        "postmortem/CKP001 checkpoint-nonfinite (step)",
        "postmortem/NAN001 nan-onset (step)",
    ]
    assert [(e.step, e.value) for e in read.Scalars("postmortem/NAN001 nan-onset (step)")] == [(156, 3.0), (156, 3.0)]
    (report,) = read.Tensors("postmortem/report")
    assert report.step == 199
    text = report.tensor_proto.string_val[0].decode()
    assert "bad-batch-or-numerics" in text
    assert "postmortem replay" in text
    assert read.SummaryMetadata("postmortem/report").plugin_data.plugin_name == "text"
    said = [e.tensor_proto.string_val[0].decode() for e in read.Tensors("postmortem/NAN001 nan-onset")]
    assert said[0].startswith("train/loss is NaN at step 156")


def test_a_scan_passes_over_what_was_written(copy, postmortem):
    """The same report as before, also where the file was copied beside the others; a second call leaves one file."""
    run = copy("restart")
    before = postmortem("scan", run, "--format", "json").out
    postmortem("annotate", run)
    assert postmortem("scan", run, "--format", "json").out == before
    postmortem("annotate", run)
    (file,) = (run / "postmortem-notes").iterdir()
    shutil.copy(file, run / file.name)
    assert postmortem("scan", run, "--format", "json").out == before


def test_runs_below_a_folder_get_a_folder_each(copy, postmortem, tmp_path):
    """A run that is one file among others has its notes beside it, under its name."""
    copy("restart")
    (tmp_path / "logs").mkdir()
    for name in ("a", "b"):
        rows = [f"step {s} loss {1 / (s + 1):.4f}\n" for s in range(50)]
        (tmp_path / "logs" / f"{name}.out").write_text("".join(rows))
    called = postmortem("annotate", tmp_path)
    notes = [Path(line.removeprefix("wrote ")).parent.relative_to(tmp_path) for line in called.out.splitlines()]
    assert {str(n) for n in notes} == {
        "restart/postmortem-notes",
        "logs/postmortem-notes/a.out",
        "logs/postmortem-notes/b.out",
    }


def test_a_folder_that_cannot_be_written_is_one_line(copy, postmortem):
    """A file in the place of the folder."""
    run = copy("restart")
    (run / "postmortem-notes").write_text("mine")
    called = postmortem("annotate", run)
    assert called.code == 2
    assert called.err.splitlines()[-1].startswith(f"postmortem: {run}/postmortem-notes: cannot be written: ")
    assert (run / "postmortem-notes").read_text() == "mine"


def test_the_summary_of_a_wandb_run_names_finding_cause_and_next_step(sample_runs):
    """Strict values under postmortem/…; what is unknown is left out."""
    (run,) = pm.scan(sample_runs / "diverged-lr")
    found = summary_of(run)
    assert found["postmortem/verdict"] == "failed"
    assert found["postmortem/step"] == 337
    assert found["postmortem/cause"] == "learning-rate-too-high"
    assert found["postmortem/last_good_step"] == 336
    assert "postmortem/last_good_checkpoint" not in found


def test_wandb_gets_summary_and_alert_in_an_offline_run_of_the_same_id(copy, postmortem, monkeypatch):
    """The real SDK without network: its files are in the notes, and hold the keys and the alert."""
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}.items():
        monkeypatch.setenv(name, value)
    run = copy("diverged-lr")
    before = contents(run)
    report = postmortem("scan", run, "--format", "json").out
    called = postmortem("annotate", run, "--wandb")
    assert called.code == 0, called.err
    assert called.out.splitlines()[-1] == "annotated the W&B run a1b2c3d4"
    assert contents(run) == before
    (written,) = (run / "postmortem-notes").rglob("run-a1b2c3d4.wandb")
    data = written.read_bytes()
    for said in (b"postmortem/verdict", b"learning-rate-too-high", b"failed: GRD002 gradient-explosion"):
        assert said in data
    assert pm.load(written).summary["postmortem/step"] == 337
    assert postmortem("scan", run, "--format", "json").out == report


def test_wandb_without_a_login_is_one_clear_line(copy, postmortem, monkeypatch, tmp_path):
    """The real SDK, online and without a key: it says what to do, and the event file is written all the same."""
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), "WANDB_SILENT": "true", "WANDB_BASE_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    called = postmortem("annotate", copy("diverged-lr"), "--wandb")
    assert called.code == 2
    assert called.out.startswith("wrote ")
    last = called.err.splitlines()[-1]
    assert "the W&B run was not annotated: " in last
    assert "WANDB_MODE=offline" in last


def test_a_run_without_wandb_is_not_sent_there(sample_runs, copy, postmortem):
    """A note on stderr; the event file is written all the same."""
    called = postmortem("annotate", copy("restart"), "--wandb")
    assert called.code == 0
    assert "is not a W&B run" in called.err
    (report,) = pm.scan(sample_runs / "restart")
    with pytest.raises(NotFoundError, match="no W&B run is in it"):
        write_to_wandb(report, folder_of(report))
