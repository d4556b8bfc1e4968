"""Caffe's net outputs."""

from __future__ import annotations

from pathlib import Path

import postmortem

GLOG = "I0821 09:21:09.874228  5405 solver.cpp:310] "


def test_outputs_of_the_test_net_are_validation_series(tmp_path: Path) -> None:
    """They belong to the iteration of the test; the loss of the training is the average that Caffe prints itself."""
    lines = []
    for i in range(0, 200, 20):
        lines += [
            f"Iteration {i}, Testing net (#0)",
            f"    Test net output #0: accuracy = {i / 200}",
            f"    Test net output #1: loss = {3 - i / 200} (* 1 = {3 - i / 200} loss)",
            f"Iteration {i} (12.6 iter/s, 1.58s/20 iters), loss = {2 - i / 200}",
            f"    Train net output #0: loss = {2.01 - i / 200} (* 1 = {2.01 - i / 200} loss)",
            f"    Train net output #1: aux/loss = {1 - i / 200} (* 0.3 = {0.3 - i / 600} loss)",
            f"Iteration {i}, lr = 0.01",
        ]
    (tmp_path / "caffe.log").write_text("".join(f"{GLOG}{line}\n" for line in lines))
    run = postmortem.load(tmp_path / "caffe.log")
    assert run.roles == {
        "Test accuracy": "val_accuracy", "Test loss": "val_loss", "loss": "loss", "aux/loss": "loss", "lr": "lr",
    }  # fmt: skip
    for tag, first in (("Test loss", 3.0), ("loss", 2.0), ("aux/loss", 1.0)):
        series = run.frame[run.frame.tag == tag]
        assert series.step.tolist() == list(range(0, 200, 20))
        assert series.value.iloc[0] == first


def test_a_nan_of_the_training_net_is_kept(tmp_path: Path) -> None:
    """A value that is not finite counts wherever it is printed."""
    lines = [f"Iteration {i}, loss = {2 - i / 200}" for i in range(0, 200, 20)]
    lines += ["    Train net output #0: loss = nan (* 1 = nan loss)"]
    (tmp_path / "caffe.log").write_text("".join(f"{GLOG}{line}\n" for line in lines))
    (report,) = postmortem.scan(tmp_path / "caffe.log").runs
    assert "nan-onset" in [finding.name for finding in report.findings]
