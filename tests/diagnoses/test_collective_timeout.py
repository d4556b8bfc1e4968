"""Of a collective that timed out the rank that did not come is named, as far as the log tells."""

from __future__ import annotations

import pytest

import postmortem

WAITED = (
    "[rank{0}]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, "
    "OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)
QUEUED = (
    "[rank{0}]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:633] [Rank {0}] Timeout at NCCL work: {1}, last enqueued NCCL work: {1}, "
    "last completed NCCL work: 119.\n"
)


def rows(last: dict[int, int]) -> str:
    return "".join(f"[rank{rank}]: step {step} loss {2 + 1 / (step + rank + 1):.4f}\n" for step in range(31) for rank in last if step <= last[rank])


@pytest.mark.parametrize(
    ("text", "summary", "look"),
    [
        (
            rows(dict.fromkeys(range(4), 30)) + "".join(WAITED.format(r) for r in (0, 1, 3)),
            "Rank 2 did not come to the collective ALLREDUCE number 120 for which ranks 0, 1 and 3 waited. ",
            "rank 2",
        ),
        (
            rows(dict.fromkeys(range(3), 30)) + "".join(WAITED.format(r) + QUEUED.format(r, 121 if r == 1 else 140) for r in range(3)),
            "Rank 1 had queued 121 collectives, others 140: it is behind. ",
            "rank 1",
        ),
        (
            rows({0: 30, 1: 30, 2: 28}) + "".join(WAITED.format(r) for r in range(3)),
            "The last row of rank 2 is of step 28, of the others of step 30. ",
            "rank 2",
        ),
    ],
    ids=["missing", "queued", "steps"],
)
def test_who_did_not_come(text, summary, look, tmp_path):
    (tmp_path / "train.out").write_text(text)
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert found.name == "crash: nccl-timeout"
    assert found.summary.startswith(summary)
    assert found.next[0].startswith(f"look at {look}: ")


def test_the_log_of_one_rank_alone(tmp_path):
    """Where one of eight ranks writes, the seven others are no suspects."""
    (tmp_path / "train.out").write_text("world_size: 8\n" + rows({0: 30}) + WAITED.format(0))
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert not any("for which" in text for text in (found.summary, *found.evidence_for))
