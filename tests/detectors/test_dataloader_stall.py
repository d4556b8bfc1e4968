"""Steps that wait for data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.core.view import View
from postmortem.detectors.dataloader_stall import DataloaderStall
from postmortem.detectors.shared.timing import opens
from tests.detectors.cases import fires, put, quiet, scale, spoiled


@fires(DataloaderStall, step=200)
def three_long_waits(base):
    return spoiled(base, "data_time", put([200, 231, 290], 3.0))


@quiet(DataloaderStall)
def a_wait_at_the_start_of_each_epoch(base):
    """Waits at equal distances are epochs, evaluations or checkpoints."""
    return spoiled(base, "data_time", put(slice(50, None, 50), 3.0))


@quiet(DataloaderStall)
def a_wait_at_the_start_of_some_epochs(base):
    """Workers start with an epoch, and fill their queues; a cache spares it in the others."""
    spoilt = spoiled(base, "data_time", put([90, 270, 330], 3.0))
    return spoilt | {"epoch": np.arange(len(base["data_time"])) // 30}


def test_waits_that_cost_little_are_information(view_of):
    """Three waits of two seconds in 20 minutes are no reason to look at the loader."""
    wait = np.full(6000, 0.001)
    wait[[2000, 3511, 4820]] = 2.0
    [found] = DataloaderStall().detect(view_of({"loss": np.ones(6000), "data_time": wait, "step_time": wait + 0.2}))
    assert found.severity == "info"
    wait[2000:2030] = 2.0
    [found] = DataloaderStall().detect(view_of({"loss": np.ones(6000), "data_time": wait, "step_time": wait + 0.2}))
    assert found.severity == "warning"


@quiet(DataloaderStall)
def steps_in_which_an_evaluation_is_logged(base):
    """Evaluations at irregular steps that are part of the step time explain the slow ones."""
    at = np.array([60, 110, 190, 300, 333])
    spoilt = spoiled(base, "step_time", scale(at, 20.0))
    return {tag: v for tag, v in spoilt.items() if tag not in ("data_time", "val/loss", "val_loss")} | {
        "val_loss": (at, np.full(len(at), 0.5))
    }


@pytest.mark.parametrize(("usual", "slow", "names"), [(4.0, 160.0, ["dataloader-stall"]), (0.2, 1.5, [])])
def test_a_time_to_fetch_in_milliseconds(tmp_path: Path, usual: float, slow: float, names: list[str]) -> None:
    """The unit behind the value counts: 1.5 ms are nothing, though many times the usual."""
    lines = [
        f"iter {10 * i}/600 loss {1 / i:.4f} wait {usual if i < 40 else slow} ms fwdbwd {15 + i % 3}.0 ms  9 it/s"
        for i in range(1, 60)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings] == names
    assert run.run.roles["wait ms"] == "data_time"
    assert run.run.roles["it/s"] == "throughput"


@fires(DataloaderStall, step=260)
def a_single_wait_shortly_before_a_lasting_one(base):
    """A lasting wait begins with the first of its steps, not with a wait at the end of the epoch before."""
    spoilt = spoiled(base, "data_time", put(slice(260, None), 3.0))
    return spoiled(spoilt, "data_time", put(255, 3.0))


@quiet(DataloaderStall)
def steps_of_two_lengths(base):
    """Some steps take six times as long as the others: one that takes a little longer still is no stall."""
    steps = np.arange(400)
    lengths = np.where(np.random.default_rng(3).random(400) < 0.35, 0.006, 0.001)
    lengths[260] = lengths[301] = 0.011
    return {tag: v for tag, v in base.items() if tag != "data_time"} | {"step_time": (steps, lengths)}


@pytest.mark.parametrize(("slow", "found"), [(slice(None, None, 37), 0), (slice(200, None), 1)])
def test_a_waiting_time_that_is_printed_as_zero(view_of, healthy, slow, found):
    """Single waits among times too short to be printed are no stall; waiting in every step is one."""
    waits = np.zeros(400)
    waits[slow] = 3.0
    findings = list(DataloaderStall().detect(view_of(healthy() | {"data_time": waits})))
    assert len(findings) == found
    assert all("where it took 0" in f.message for f in findings)


def watched_steps(folder: Path, *, wait: float, compute: float) -> list[str]:
    """Names of the findings in a history of `postmortem run`: a few steps compute, or wait, longer than the others."""
    history = folder / "postmortem-report" / "history" / "20260101-120000"
    history.mkdir(parents=True)
    lines = []
    for k in range(150):
        slow = k in (40, 57, 63, 88, 101, 130)
        forward, more = (compute if slow else 0.0008), (wait if slow else 0.0003)
        row = {"tick": k, "time": 1e9 + k, "step_time": forward + 0.0008 + more, "loss": 1 / (k + 1)}
        lines.append(json.dumps(row | {"seconds/forward": forward, "seconds/backward": 0.0008}) + "\n")
    (history / "history.jsonl").write_text("".join(lines))
    [run] = postmortem.scan(folder).runs
    return [f.name for f in run.findings if f.name == "dataloader-stall"]


def test_steps_that_compute_longer_wait_for_nothing(tmp_path: Path) -> None:
    """The times of forward pass, backward pass and update show where a long step spent its time."""
    assert watched_steps(tmp_path / "computes", wait=0.0003, compute=0.8) == []
    assert watched_steps(tmp_path / "waits", wait=0.8, compute=0.0008) == ["dataloader-stall"]


def test_waits_of_some_milliseconds_in_all_are_nothing(tmp_path: Path) -> None:
    """On a busy machine single steps of 2 ms take 12 ms: many times the usual, and a fraction of a second in all."""
    assert watched_steps(tmp_path, wait=0.012, compute=0.0008) == []


def test_the_first_rows_of_an_epoch_that_was_begun_twice(tmp_path: Path) -> None:
    """Its first step is logged before and after the restart: both rows open a start, as the first of all does."""
    rows = []
    for epoch in (1, 2, 3, 3):
        rows.append("================ Training Loss (Thu Oct 31 22:57:18 2024) ================")
        for i in range(1, 41):
            wait = 9.3 if i == 1 else 0.001
            rows.append(f"(epoch: {epoch}, iters: {i * 10}, time: 1.5, data: {wait}) loss: {2 - i / 300:.3f}")
    (tmp_path / "loss_log.txt").write_text("\n".join(rows) + "\n")
    view = View(postmortem.load(tmp_path))
    series = next(s.finite for s in view.of("data_time"))
    assert opens(view, series).tolist() == (series.value > 1).tolist()


def test_a_new_level_is_no_stall_and_a_rate_falls(view_of):
    """Steps that are slower for good are throughput-drop; of a rate is said that it falls."""
    rate = np.full(200, 7.0) + 0.1 * np.sin(np.arange(200))
    slow = rate.copy()
    slow[60:] = 1.2 + 0.2 * np.sin(np.arange(140))
    losses = np.linspace(2, 1, 200)
    assert not list(DataloaderStall().detect(view_of({"loss": losses, "samples/sec": slow})))
    rate[[90, 133, 151]] = 0.2
    [found] = DataloaderStall().detect(view_of({"loss": losses, "samples/sec": rate}))
    assert "falls to 0.02" in found.message
    assert " of the usual in 3 of 200 rows" in found.message


def test_the_time_since_the_start_of_each_attempt_is_no_time_of_a_step(tmp_path: Path) -> None:
    """YOLO writes the seconds since its start, and each attempt adds its rows to one table."""
    rows = ["epoch,time,train/box_loss"]
    for length in (6, 9, 1, 14, 60):
        rows += [f"{e},{40 + 81.3 * e:.3f},{2 / (e + 3):.5f}" for e in range(1, length + 1)]
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    (run,) = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.name in ("dataloader-stall", "throughput-drop")] == []
