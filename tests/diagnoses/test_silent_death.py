"""A log that stops and does not say why."""

from __future__ import annotations

from pathlib import Path

import postmortem
from postmortem.diagnoses.silent_death import SilentDeath
from tests.diagnoses.cases import NAN_FROM_200, quiet, tells


@tells(SilentDeath, root="silent-death", step=399, config={"max_steps": 9000})
def a_log_that_stops_at_step_400_of_9000(course):
    return course()


@quiet(SilentDeath, config={"max_steps": 9000})
def the_loss_was_nan_before(course):
    """A run that failed gets the diagnosis of its failure, even if the log stops as well."""
    return course(**NAN_FROM_200)


def test_the_last_logged_step_is_the_last_good_one(tmp_path: Path) -> None:
    """The log stops after its last row, which is finite and stable."""
    rows = [f"step {i}/1000 loss {2 - i / 1000:.4f}" for i in range(0, 500, 10)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert (run.diagnosis.name, run.diagnosis.last_good_step) == ("silent-death", 490)
