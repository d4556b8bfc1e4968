"""The rank that did not join a collective that timed out is named, as far as the log shows it."""

from __future__ import annotations

import pytest

import postmortem
from postmortem.core.model import Event
from postmortem.diagnoses.collective_timeout import CollectiveTimeout
from tests.diagnoses.cases import quiet, tells


@tells(
    CollectiveTimeout,
    name="crash: nccl-timeout",
    root="crash",
    step=399,
    ended="crashed",
    event_list=[
        Event(kind="nccl-timeout", severity="error", message="nccl-timeout", file="train.err", line=1, step=399)
    ],
)
def the_message_alone(course):
    return course()


@quiet(
    CollectiveTimeout,
    ended="crashed",
    event_list=[Event(kind="nccl-remote", severity="error", message="nccl-remote", file="train.err", line=1, step=399)],
)
def a_connection_that_was_closed(course):
    """The other side crashed: nobody waited."""
    return course()


WAITED = (
    "[rank{0}]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=120, "
    "OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600010 milliseconds before "
    "timing out.\n"
)
QUEUED = (
    "[rank{0}]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:633] [Rank {0}] Timeout at NCCL work: {1}, last "
    "enqueued NCCL work: {1}, "
    "last completed NCCL work: 119.\n"
)


def rows(last: dict[int, int]) -> str:
    return "".join(
        f"[rank{rank}]: step {step} loss {2 + 1 / (step + rank + 1):.4f}\n"
        for step in range(31)
        for rank in last
        if step <= last[rank]
    )


@pytest.mark.parametrize(
    ("text", "summary", "look"),
    [
        (
            rows(dict.fromkeys(range(4), 30)) + "".join(WAITED.format(r) for r in (0, 1, 3)),
            "Ranks 0, 1 and 3 waited for the collective ALLREDUCE number 120; rank 2 reported no timeout and likely "
            "did not join it. ",
            "rank 2",
        ),
        (
            rows(dict.fromkeys(range(3), 30))
            + "".join(WAITED.format(r) + QUEUED.format(r, 121 if r == 1 else 140) for r in range(3)),
            "Rank 1 had queued 121 collectives, the others up to 140. ",
            "rank 1",
        ),
        (
            rows({0: 30, 1: 30, 2: 28}) + "".join(WAITED.format(r) for r in range(3)),
            "Rank 2 logged up to step 28, the others up to step 30. ",
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
    assert found.next[0].startswith(f"check {look}: ")


def test_the_log_of_one_rank_alone(tmp_path):
    """Where one of eight ranks writes, the seven others are no suspects."""
    (tmp_path / "train.out").write_text("world_size: 8\n" + rows({0: 30}) + WAITED.format(0))
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert not any("likely" in text for text in (found.summary, *found.evidence_for))


def test_a_log_for_each_rank(tmp_path):
    """What the ranks say in files of their own is put together, where they waited for different collectives, too."""
    for rank in range(4):
        steps = "".join(f"step {step} loss {2 + 1 / (step + rank + 1):.4f}\n" for step in range(31))
        waited = WAITED.format(rank).replace("SeqNum=120", f"SeqNum={120 + rank}") if rank != 2 else ""
        (tmp_path / f"train_rank{rank}.out").write_text(steps + waited)
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert found.summary.startswith(
        "Ranks 0, 1 and 3 waited for the collective; rank 2 reported no timeout and likely did not join it. "
    )


LISTED = (
    "[E1121 10:00:00.123456789 ProcessGroupGloo.cpp:145] [Rank 0]: Rank {} failed to pass monitoredBarrier in 5000 ms\n"
)


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: timed out waiting for ranks: [3, 5, 6] in monitoredBarrier after 10000 ms\n",
        "RuntimeError: [Rank 0]: Ranks 3, 5, 6 failed to pass monitoredBarrier in 5000 ms\n",
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 5000 ms\n"
        + LISTED.format(5)
        + LISTED.format(6),
        "RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running collective: "
        "CollectiveFingerPrint(SequenceNumber=13, "
        "OpType=ALLREDUCE, TensorShape=[20, 10]). Error: \n[Rank 0]: Ranks 3, 5, 6 failed to pass monitoredBarrier in "
        "5000 ms\n",
        "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. Please check "
        "rank 0 logs for faulty rank.\n[Rank 0]: Ranks 3, 5, 6 failed to pass monitoredBarrier in 5000 ms\n",
    ],
)
def test_a_barrier_lists_who_is_missing(tmp_path, error):
    """Of whom the barrier names, also where the rank that waited is not known and more are missing than waited."""
    stack = 'Traceback (most recent call last):\n  File "train.py", line 61, in <module>\n    main()\n'
    (tmp_path / "train.out").write_text("".join(f"step {i} loss {2 / i:.3f}\n" for i in range(1, 20)) + stack + error)
    run = postmortem.scan(tmp_path).runs[0]
    found = run.diagnosis
    assert {tuple(e.fields["suspects"]) for e in run.events} == {(3, 5, 6)}
    assert run.ended == "hung"
    assert found.summary.startswith("Ranks 3, 5 and 6 did not reach the barrier. ")
    assert found.next[0].startswith("check ranks 3, 5 and 6: ")


def test_rows_that_one_rank_alone_logs(tmp_path):
    """A rank that logs another metric, more rarely, is not the slowest."""
    evaluated = "".join(f"[rank1]: step {step} val_loss {2 + 1 / (step + 1):.4f}\n" for step in range(0, 30, 10))
    (tmp_path / "train.out").write_text(rows({0: 30}) + evaluated + WAITED.format(0) + WAITED.format(1))
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert not any("logged up to" in text for text in (found.summary, *found.evidence_for))


def test_the_missing_rank_is_the_root_and_those_that_waited_its_consequences(tmp_path):
    """Each rank has a log of its own; rank 3 printed its steps and nothing about a timeout."""
    for rank in range(4):
        text = "".join(f"[rank{rank}]: step {i} loss {2 + 1 / (i + rank + 1):.4f}\n" for i in range(31))
        (tmp_path / f"rank_{rank}.log").write_text(text + ("" if rank == 3 else WAITED.format(rank)))
    [run] = postmortem.scan(tmp_path).runs
    root = run.findings[0]
    assert (root.name, root.rank, root.step) == ("hang", 3, 30)
    assert all(f.because_of == root.id for f in run.findings[1:] if f.name == "crash")
    assert run.diagnosis.name == "crash: nccl-timeout"


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (("SeqNum=120, OpType=ALLREDUCE, NumelIn=1048576", "SeqNum=119, OpType=ALLREDUCE, NumelIn=1"), "is 1 behind"),
        (("OpType=ALLREDUCE", "OpType=BROADCAST"), "is in another call"),
    ],
)
def test_a_rank_that_waits_for_another_collective_is_named(tmp_path, change, how):
    """All ranks time out, one of them elsewhere: it is out of step. No rank is missing, and each line is counted."""
    late = WAITED.format(2).replace(*change)
    (tmp_path / "train.out").write_text(
        rows(dict.fromkeys(range(4), 30)) + "".join(WAITED.format(r) for r in (3, 1, 0)) + late
    )
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert found.name == "crash: nccl-timeout"
    assert found.summary.startswith("Rank 2 timed out in ")
    assert how in found.summary
    lines = 4 if "NumelIn" in change[0] else 3  # another operation is another message
    assert any(words.startswith(f"reported {lines} times, by ranks 0, 1") for words in found.evidence_for)
    assert "rank 2" in found.next[0]
    assert not any("missing from the list" in action for action in found.next)
