"""The last good checkpoint: looked into before it is named, and the same one for a scan, `checkpoints` and a replay."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem import api  # noqa: E402
from postmortem.checkpoints.health import inspect  # noqa: E402
from postmortem.replay.roll.aim import Aim  # noqa: E402
from postmortem.replay.roll.start import choose_checkpoint  # noqa: E402


def save(path: Path, value: float) -> None:
    torch.save({"model": {"w": torch.full((3,), value)}}, path)


def write_log(folder: Path, loss: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{loss(i)}\n" for i in range(100)))


def falling(step: int) -> float:
    return 2 / (1 + step / 10)


@pytest.fixture
def failed_run(tmp_path: Path) -> Path:
    """A run whose loss is NaN from step 60 on; its weights are NaN from step 42 on, saved every second step."""
    write_log(tmp_path / "exp", lambda i: math.nan if i >= 60 else falling(i))
    for step in range(30, 70, 2):
        save(tmp_path / "exp" / f"step_{step:03d}.pt", math.nan if step >= 42 else 1.0)
    return tmp_path / "exp"


def last_good_of_scan(folder: Path) -> str | None:
    (run,) = api.scan(folder).runs
    assert run.diagnosis is not None
    return run.diagnosis.last_good_checkpoint


def test_a_checkpoint_that_is_overwritten_is_looked_into_again(tmp_path: Path) -> None:
    """A second scan in the same process sees that the file named good by the first was replaced by NaN."""
    write_log(tmp_path, lambda i: math.nan if i >= 60 else falling(i))
    for step in (20, 40):
        save(tmp_path / f"step_{step}.pt", 1.0)
    assert last_good_of_scan(tmp_path) == str(tmp_path / "step_40.pt")
    save(tmp_path / "step_40.pt", math.nan)
    assert last_good_of_scan(tmp_path) == str(tmp_path / "step_20.pt")


def test_a_file_in_a_folder_that_is_replaced_is_looked_into_again(tmp_path: Path) -> None:
    """A checkpoint folder is looked into again where one of its files was replaced."""
    folder = tmp_path / "checkpoint-40"
    folder.mkdir()
    for part in ("model", "optimizer"):
        save(folder / f"{part}.pt", 1.0)
    assert inspect(folder).finite is True
    other = tmp_path / "other.pt"
    save(other, math.nan)
    other.rename(folder / "optimizer.pt")
    assert inspect(folder).finite is False


def test_an_unchanged_checkpoint_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file stays the same, its health is remembered."""
    save(tmp_path / "step_1.pt", 1.0)
    first = inspect(tmp_path / "step_1.pt")
    monkeypatch.setattr("postmortem.checkpoints.health.health", None)
    assert inspect(tmp_path / "step_1.pt") is first


def test_scan_checkpoints_and_replay_agree(failed_run: Path, postmortem: Any) -> None:
    """However many non-finite checkpoints a failed run saved before its loss showed it, all three name one."""
    good = str(failed_run / "step_040.pt")
    (report,) = api.scan(failed_run).runs
    assert report.diagnosis is not None
    assert report.diagnosis.last_good_checkpoint == good
    assert json.loads(postmortem("checkpoints", failed_run, "--format", "json").out)["last_good"] == good
    assert choose_checkpoint(failed_run, report.run, report, Aim(60), None) == Path(good)


def test_a_run_that_did_not_fail_names_no_bad_checkpoint(tmp_path: Path) -> None:
    """The checkpoint that the story of a suspect run would name is opened: where it is NaN, that is the finding."""

    def val(step: int) -> float:
        return falling(step) + (0.02 * (step - 40) if step > 40 else 0)

    rows = "".join(f"{i},{falling(i)},{val(i) if i % 2 == 0 else ''}\n" for i in range(200))
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/loss\n" + rows)
    for step in (20, 30, 38):
        save(tmp_path / f"step_{step}.pt", math.nan if step > 20 else 1.0)
    (report,) = api.scan(tmp_path).runs
    assert "overfitting" in {f.name for f in report.findings}
    assert report.verdict == "failed"
    assert report.diagnosis is None
    bad = next(f for f in report.findings if f.name == "checkpoint-nonfinite")
    assert [c["step"] for c in bad.evidence["checkpoints"]] == [30, 38]
    for step in (30, 38):
        save(tmp_path / f"step_{step}.pt", 1.0)
    assert last_good_of_scan(tmp_path) == str(tmp_path / "step_38.pt")


def test_a_replay_looks_into_what_a_report_names(tmp_path: Path) -> None:
    """A replay does not start from the diagnosis' checkpoint where that is NaN, but from the newest good one before."""
    write_log(tmp_path, lambda i: math.nan if i >= 60 else falling(i))
    for step in (20, 40):
        save(tmp_path / f"step_{step}.pt", 1.0)
    (report,) = api.scan(tmp_path).runs
    save(tmp_path / "step_40.pt", math.nan)  # since the scan
    assert choose_checkpoint(tmp_path, report.run, report, Aim(60), None) == tmp_path / "step_20.pt"


def test_parts_of_a_step_are_good_together(tmp_path: Path, postmortem: Any) -> None:
    """Of two networks saved at one step, one with NaN makes the step bad, for a scan, `checkpoints` and a replay."""
    write_log(tmp_path, lambda i: math.nan if i >= 60 else falling(i))
    for step in (20, 40):
        save(tmp_path / f"G_{step}.pth", 1.0)
        save(tmp_path / f"D_{step}.pth", math.nan if step == 40 else 1.0)
    good = str(tmp_path / "G_20.pth")
    assert last_good_of_scan(tmp_path) == good
    assert json.loads(postmortem("checkpoints", tmp_path, "--format", "json").out)["last_good"] == good
    assert choose_checkpoint(tmp_path, api.load(tmp_path), None, Aim(60), None) == Path(good)


def test_a_step_with_an_unreadable_part_is_not_good(tmp_path: Path, postmortem: Any) -> None:
    """A step of two networks, one of them truncated, is not named while another good step exists."""
    write_log(tmp_path, lambda i: math.nan if i >= 60 else falling(i))
    for step in (20, 40):
        for network in "DG":
            save(tmp_path / f"{network}_{step}.pth", 1.0)
    (report,) = api.scan(tmp_path).runs  # before the damage
    damaged = tmp_path / "D_40.pth"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    good = str(tmp_path / "G_20.pth")
    assert last_good_of_scan(tmp_path) == good
    assert json.loads(postmortem("checkpoints", tmp_path, "--format", "json").out)["last_good"] == good
    for scanned in (None, report):
        assert choose_checkpoint(tmp_path, api.load(tmp_path), scanned, Aim(60), None) == Path(good)
    for network in "DG":
        (tmp_path / f"{network}_20.pth").unlink()
    assert last_good_of_scan(tmp_path) == str(tmp_path / "G_40.pth")  # the only one that may be good


def test_a_latest_that_was_overwritten_spoils_no_named_step(tmp_path: Path, postmortem: Any) -> None:
    """``latest.pt`` says the same step and holds NaN: ``step_40.pt`` is a checkpoint of its own, and still good."""
    write_log(tmp_path, lambda i: math.nan if i >= 60 else falling(i))
    save(tmp_path / "step_40.pt", 1.0)
    torch.save({"weight": torch.full((4,), math.nan), "step": 40}, tmp_path / "latest.pt")
    good = str(tmp_path / "step_40.pt")
    assert last_good_of_scan(tmp_path) == good
    assert json.loads(postmortem("checkpoints", tmp_path, "--format", "json").out)["last_good"] == good
    assert choose_checkpoint(tmp_path, api.load(tmp_path), None, Aim(60), None) == Path(good)


def test_a_scan_in_a_folder_that_is_gone(failed_run: Path, tmp_path: Path) -> None:
    """torch cannot be imported there: the run is judged by its log, and a note says why no checkpoint was opened."""
    gone = tmp_path / "gone"
    gone.mkdir()
    call = f"main(['scan', '-v', {str(failed_run)!r}])"
    scan = f"import os; os.rmdir({str(gone)!r}); from postmortem.cli.main import main; {call}"
    package = str(Path(api.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", scan],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "the working directory is gone" in done.stdout
