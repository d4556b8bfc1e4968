"""Findings in one line, and how a run ended."""

from __future__ import annotations

from dataclasses import replace

from postmortem.core.model import Event
from postmortem.reporters.shared.outline import Fold, describe
from postmortem.reporters.shared.words import end_of


def test_several_findings_without_a_place_say_what_they_are(everything):
    """ "2 times, first" goes on with the first one."""
    run = everything["exp7"]
    first = replace(run.findings[0], tag=None, rank=None, step=None, message="a.wandb: not a W&B log", because_of=None)
    fold = Fold((first, replace(first, id="f99", message="b.wandb: not a W&B log")), ())
    assert describe(fold, run) == "2 times, first: a.wandb: not a W&B log"
    placed = Fold((replace(first, step=7), replace(first, id="f99", step=9)), ())
    assert describe(placed, run).endswith("first at step 7")


def test_a_run_that_stop_ended_was_not_cancelled_from_outside(everything):
    """It is postmortem itself that ended it."""
    run = replace(everything["exp7"], ended="interrupted", events=())
    assert end_of(run) == "interrupted or cancelled from outside"
    event = Event(kind="nan-report", severity="info", file="w", message="", fields={"stopped": True}, source="watch")
    assert end_of(replace(run, events=(event,))) == "ended by `postmortem run --stop`"
