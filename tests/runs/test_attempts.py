"""The outputs of several starts of one job, and files that are no output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def _steps(first: int, last: int) -> str:
    return "".join(f"step {i}: loss {2.5 - 0.01 * i:.4f}\n" for i in range(first, last))


def test_numbered_outputs_beside_one_set_of_checkpoints_are_one_run(tmp_path: Path) -> None:
    """The second start continues the first one, which was killed."""
    (tmp_path / "train-1.out").write_text(_steps(0, 100) + "Killed\n")
    (tmp_path / "train-2.out").write_text(_steps(80, 200) + "Training finished\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step_80.pt").write_bytes(b"PK\x03\x04")
    (report,) = postmortem.scan(tmp_path).runs
    assert (report.ended, report.last_step) == ("completed", 199)
    assert [f.step for f in report.findings if f.name == "step-reset"] == [80]


def test_numbered_outputs_without_checkpoints_are_runs_of_their_own(tmp_path: Path) -> None:
    """Nothing says that they belong together."""
    (tmp_path / "train-1.out").write_text(_steps(0, 100))
    (tmp_path / "train-2.out").write_text(_steps(0, 100))
    assert len(postmortem.scan(tmp_path).runs) == 2


def test_python_source_is_no_log(tmp_path: Path) -> None:
    """Under whatever name; a log that begins with the source of its program is one."""
    source = 'import torch\n\n\ndef train(lr=0.1):\n    loss = 3.0\n    print("step 5 loss 3.0")\n'
    (tmp_path / "model.txt").write_text(source)
    (tmp_path / "train.log").write_text(source + "=" * 40 + "\n" + _steps(0, 50))
    (report,) = postmortem.scan(tmp_path).runs
    assert report.last_step == 49
    assert [source.files for source in report.sources] == [(str(tmp_path / "train.log"),)]
