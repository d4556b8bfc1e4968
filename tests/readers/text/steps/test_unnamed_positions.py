"""Counters under unknown names, numbers that count nothing, and bars without the headers of their epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def _run(tmp_path: Path, rows: list[str], end: str = "\n") -> postmortem.Run:
    path = tmp_path / "train.log"
    path.write_text(end.join(rows) + "\n")
    return postmortem.load(path)


def test_a_counter_of_an_unknown_name(tmp_path: Path) -> None:
    """``count: 50`` rises evenly within the epoch that a header names: it is the position there."""
    rows = []
    for epoch in range(3):
        rows.append(f"INFO:root:train epoch: {epoch}")
        rows += [f"INFO:root:count: {n}, loss:{9 - epoch + 1 / (n + 1):.6f}: " for n in range(0, 1000, 50)]
    run = _run(tmp_path, rows)
    assert run.step_axis == "step"
    assert run.series("loss").index.tolist() == [e * 1000 + n for e in range(3) for n in range(0, 1000, 50)]


def test_a_number_that_rises_unevenly_is_a_metric(tmp_path: Path) -> None:
    """The correct answers so far rise as well, but not by the same number each time."""
    rng = np.random.default_rng(0)
    rows = []
    for epoch in range(3):
        rows.append(f"train epoch: {epoch}")
        rows += [f"right: {n}, loss: {9 - epoch:.3f}" for n in np.cumsum(rng.integers(10, 60, 20))]
    assert _run(tmp_path, rows).step_axis == "epoch"


def test_codes_in_brackets_are_no_steps(tmp_path: Path) -> None:
    """``[035720][Epoch 01/10]``: the number of a thing that is trained on is in no order within an epoch."""
    codes = ("035720", "051910", "005930", "035420", "000660")
    rng = np.random.default_rng(1)
    rows = [
        f"[{code}][Epoch {epoch:02d}/20] Loss:{30 / epoch:.6f}"
        for epoch in range(1, 21)
        for code in rng.permutation(codes)
    ]
    run = _run(tmp_path, rows)
    assert run.step_axis == "epoch"
    assert run.frame.step.tolist() == [e for e in range(1, 21) for _ in codes]


def test_ranks_that_print_in_some_disorder_count_steps(tmp_path: Path) -> None:
    """Lines of four processes are not in the order of their steps, but their numbers grow."""
    rng = np.random.default_rng(2)
    rows = []
    for epoch in range(1, 5):
        for k in range(0, 400, 20):
            rows += [f"Epoch: [{epoch}][{n}/400] loss {2 / epoch:.4f}" for n in rng.permutation([k, k, k + 10, k + 20])]
    assert _run(tmp_path, rows).step_axis == "step"


def _bars(headers: int) -> list[str]:
    rows = []
    for epoch in range(12):
        if epoch < headers:
            rows.append(f"Epoch {epoch + 1}/20")
        rows += [f"{n // 16:3d}%|### | {n}/1600 [00:10<00:20, 80it/s, loss={2 - 0.1 * epoch:.4f}]" for n in (800, 1600)]
    return rows


def test_bars_without_the_headers_of_their_epochs(tmp_path: Path) -> None:
    """Most headers are missing from the record of a terminal: rows are counted, and the run did not stop in epoch 1."""
    run = _run(tmp_path, _bars(1))
    assert len(set(run.series("loss").index)) > 10
    assert not postmortem.scan(tmp_path).runs[0].findings


def test_bars_with_their_headers_stop_in_an_epoch(tmp_path: Path) -> None:
    """With all headers the epoch is known, and the training ends too early."""
    _run(tmp_path, _bars(12))
    assert [f.name for f in postmortem.scan(tmp_path).runs[0].findings] == ["silent-death"]


def test_what_a_bar_shows_before_its_first_step(tmp_path: Path) -> None:
    """Infinity at 0 is what a program begins with; a bar that goes on with it reports it."""
    rows = [f"{n}%|## | {n}/100 [00:01<00:09, 9it/s, a_loss={{a}}, loss={{b}}]" for n in range(0, 100, 5)]
    first = [rows[0].format(a="inf", b="inf")]
    run = _run(tmp_path, first + [row.format(a=f"{2 / k:.4f}", b=f"{3 / k:.4f}") for k, row in enumerate(rows[1:], 1)])
    assert np.isfinite(run.frame.value).all()
    assert not postmortem.scan(tmp_path).runs[0].findings
    run = _run(tmp_path, [row.format(a="inf", b="inf") for row in rows])
    assert np.isinf(run.frame.value).all()
    assert len(run.frame) == 2 * len(rows)


def test_positions_in_brackets(tmp_path: Path) -> None:
    """``[Epoch 3/50][  40:200]`` and ``Percent:[640/6400 (10%)]`` are positions in an epoch."""
    rows = [f"[Epoch {e}/3][{n:4d}:200]  Loss: {1 / e:.4f}" for e in (1, 2, 3) for n in range(0, 200, 20)]
    assert _run(tmp_path, rows).series("Loss").index.tolist() == list(range(0, 600, 20))
    rows = [
        f"Train Epoch:{e}\tPercent:[{n}/640 ({n / 6.4:.0f}%)]\tLoss:{1 / e:.4f}"
        for e in (1, 2, 3)
        for n in range(0, 640, 64)
    ]
    assert _run(tmp_path, rows).series("Loss").index.tolist() == list(range(0, 1920, 64))
