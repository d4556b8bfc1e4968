"""Logs whose names say the rank that wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def test_the_worker_logs_of_a_launcher_are_ranks_of_one_run(tmp_path: Path) -> None:
    """``paddle.distributed.launch`` writes ``log/workerlog.0``, ``log/workerlog.1``, without an ending."""
    (tmp_path / "log").mkdir()
    for rank in (0, 1):
        rows = "".join(
            f"2021-11-23 20:45:{i:02d} [INFO]\t[TRAIN] epoch: 1, iter: {i}/40, loss: {3 - i / 20 + rank}\n"
            for i in range(40)
        )
        (tmp_path / "log" / f"workerlog.{rank}").write_text(rows)
    run = postmortem.load(tmp_path / "log")
    assert sorted(set(run.frame["rank"])) == [0, 1]
    assert [len(run.frame[(run.frame["rank"] == r) & (run.frame["tag"] == "loss")]) for r in (0, 1)] == [40, 40]
