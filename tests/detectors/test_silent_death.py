"""A log that stops in the middle; a W&B run without an exit record was killed from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View
from postmortem.detectors.silent_death import SilentDeath
from tests.detectors.cases import fires, quiet


@fires(SilentDeath, step=399, config={"max_steps": 5000})
def a_log_that_stops_at_step_400_of_5000(base):
    return base


@quiet(SilentDeath, config={"max_steps": 400})
def a_log_that_ends_at_its_last_step(base):
    return base


def wandb_run(exit_code: int | None, ended: str) -> Run:
    builder = PointsBuilder()
    builder.extend("loss", range(50), [1 / (i + 1) for i in range(50)])
    points = builder.build()
    reading = Reading(source="wandb", path="run-a.wandb", facts={"exit_code": exit_code})
    streams = [Stream("wandb", "a", points, *segments(points))]
    return Run(
        name="a",
        path=Path("a"),
        streams=streams,
        event_list=[],
        problems=[],
        sources=[],
        readings=[reading],
        ended=ended,
    )


@pytest.mark.parametrize(
    ("exit_code", "ended", "steps"), [(None, "unknown", [49]), (0, "completed", []), (None, "running", [])]
)
def test_missing_exit_record(exit_code, ended, steps):
    """No exit record and no other end: a silent death at the last step; completed or still running: nothing."""
    found = list(SilentDeath(SilentDeath.Options()).detect(View(wandb_run(exit_code, ended))))
    assert [f.step for f in found] == steps


@pytest.mark.parametrize(
    "last",
    [
        "caught SIGUSR1 (time limit in 90 s): checkpoint written to ckpt.pt, requeueing",
        "scontrol requeue 551020 -> new job 551187",
        "Requeuing job 551020",
        "time limit near: state saved to last.pt, requeuing",
    ],
)
def test_a_program_that_requeues_itself_has_a_reason_to_stop(tmp_path, last):
    """It says why the log ends before the last step: the next job goes on."""
    rows = "".join(f"step {i}/1600 | loss {2 / (i + 1) + 0.5:.4f}\n" for i in range(0, 800, 10))
    (tmp_path / "train.log").write_text(rows + last + "\n")
    [run] = postmortem.scan(tmp_path).runs
    assert (run.ended, run.verdict, run.findings) == ("preempted", "healthy", ())


def test_a_script_that_could_requeue_explains_nothing(tmp_path):
    """The trap at the start of a job is no requeue."""
    rows = "".join(f"step {i}/1600 | loss {2 / (i + 1) + 0.5:.4f}\n" for i in range(0, 800, 10))
    (tmp_path / "train.log").write_text("trap 'scontrol requeue $SLURM_JOB_ID' USR1\n" + rows)
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings] == ["silent-death"]


@pytest.mark.parametrize(
    ("tail", "words"), [([], "after epoch 2 of 50"), (["  loss: 0.7 (step 40)"], "in epoch 3 of 50")]
)
def test_an_epoch_that_has_only_begun_is_not_done(tmp_path, tail, words):
    """The heading of epoch 3 is printed, and little or nothing of it is logged."""
    lines = []
    for epoch in (1, 2):
        lines += [f"Epoch {epoch}/50", *(f"  loss: {1 / (epoch + i / 9):.4f}, grad norm: 0.5" for i in range(8))]
    (tmp_path / "train.log").write_text("\n".join([*lines, "Epoch 3/50", *tail]) + "\n")
    (report,) = postmortem.scan(tmp_path / "train.log").runs
    assert [f.message for f in report.findings if f.name == "silent-death"] == [
        f"the log stops {words} without a reason"
    ]


def test_trainings_that_all_end_early(tmp_path: Path) -> None:
    """Early stopping that prints nothing ends each training of a sweep; a single one that stops may have died."""
    ends = (13, 22, 17, 31, 19)
    text = [[f"[Epoch {e}/50]\nTrain Loss: {2 / e:.4f}, Val Loss: {2.2 / e:.4f}\n" for e in range(1, n)] for n in ends]
    (tmp_path / "train.log").write_text("".join(row for rows in text for row in rows))
    assert "silent-death" not in [f.name for f in postmortem.scan(tmp_path).runs[0].findings]
    (tmp_path / "train.log").write_text("".join(text[0]))
    assert "silent-death" in [f.name for f in postmortem.scan(tmp_path).runs[0].findings]


@pytest.mark.parametrize(("last", "dies"), [(30, False), (25, False), (12, True)])
def test_the_last_of_several_trainings_that_is_far_shorter_died(tmp_path, last: int, dies: bool) -> None:
    """Trainings that all ended early were stopped by a rule; one that is far shorter than all of them was not."""
    ends = [31, 28, 34, last]
    rows = [f"Epoch {e}/100 loss {2 * 0.95**e + k / 100:.4f}" for k, end in enumerate(ends) for e in range(1, end + 1)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    assert ("silent-death" in [f.name for f in run.findings]) is dies
