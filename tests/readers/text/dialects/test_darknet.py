"""Darknet's rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

LAYER = "Region {n} Avg IOU: {iou}, Class: {iou}, Obj: {iou}, No Obj: 0.5372, .5R: {iou}, .75R: {iou},  count: {c}"


def _log(*, nan_from: int = 10_000, fork: bool = False) -> str:
    rows = ["yolov3-voc", "Learning Rate: 0.001, Momentum: 0.9, Decay: 0.0005"]
    for i in range(1, 61):
        rows += [LAYER.format(n=82, iou="-nan", c=0), LAYER.format(n=94, iou=f"{i / 90:.4f}", c=3)]
        loss = "-nan" if i >= nan_from else f"{900 / i:.6f}"
        avg = "avg loss" if fork else "avg"
        rows.append(f"{' ' if fork else ''}{i}: {loss}, {loss} {avg}, 0.00{i:04d} rate, 0.190143 seconds, {i} images")
    return "\n".join(rows) + "\n"


def test_rows_of_iterations(tmp_path: Path) -> None:
    """Loss, its running mean and the rate stand at their iteration, also as the fork prints them."""
    for fork in (False, True):
        path = tmp_path / f"{fork}.log"
        path.write_text(_log(fork=fork))
        run = postmortem.load(path)
        assert (run.roles["loss"], run.roles["avg loss"], run.roles["rate"]) == ("loss", "loss", "lr")
        assert run.series("loss").index.tolist() == list(range(1, 61))
        assert run.series("avg loss").iloc[-1] == 15.0


def test_a_layer_without_objects_is_no_fault(tmp_path: Path) -> None:
    """Its means are 0/0; a loss that is NaN is one, and layers with objects are read."""
    (tmp_path / "a.log").write_text(_log())
    report = postmortem.scan(tmp_path / "a.log").runs[0]
    assert report.verdict == "healthy"
    run = postmortem.load(tmp_path / "a.log")
    assert "Region 82/Avg IOU" not in run.roles
    assert len(run.series("Region 94/Avg IOU")) >= 59
    (tmp_path / "b.log").write_text(_log(nan_from=40))
    report = postmortem.scan(tmp_path / "b.log").runs[0]
    assert report.verdict == "failed"
    assert {f.name for f in report.findings if f.severity == "error"} == {"nan-onset"}
    assert math.isnan(postmortem.load(tmp_path / "b.log").series("loss").iloc[-1])
