"""A culprit in words, for the terminal and for reports."""

from __future__ import annotations

from typing import Any

import pytest

from postmortem.core.culprit import Culprit, Fidelity, Fix, ReplayResult
from postmortem.core.report import Report, RunReport
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.replay_text import culprit_lines, replay_lines

FIXES = (Fix(name="lower_lr", cured=False, how="rate × 0.01"), Fix(name="eps", cured=True, how="kept away"))
FOUND: dict[str, Any] = {
    "cause": "forward-op",
    "phase": "forward",
    "op": "log",
    "module": "net.0",
    "step": 7,
    "fixes": FIXES,
}


def answer(culprit: Culprit, **options: Any) -> list[str]:
    fidelity = Fidelity(ok=True, compared=3, note="3 of 3 losses equal")
    base = {
        "target": "runs/a",
        "recipe": "r.py",
        "checkpoint": "c/step_5.pt",
        "step": 7,
        "fidelity": fidelity,
        "next": ("mend it",),
    }
    return list(replay_lines(ReplayResult(**{**base, **options}, culprit=culprit)))


def test_the_short_form_has_place_samples_and_cures():
    """The line, then operator, module and step; of many samples the first twenty; what cures, and how surely."""
    lines = culprit_lines(Culprit(**FOUND, file="train.py", line=3, code="  y = x.log()", samples=tuple(range(25))))
    assert lines[:2] == ["train.py:3: y = x.log()", "forward-op at step 7: operator log, module net.0"]
    assert lines[2].endswith("18, 19, …")
    assert lines[3] == "cured by eps (kept away)"
    assert lines[4] == "established: inferred"


def test_the_short_form_without_a_culprit():
    """Nothing where nothing was replayed; else why there is no culprit."""
    assert culprit_lines(None) == []
    assert culprit_lines(Culprit(cause="transient", phase="none", how=("ran", "did not come back"))) == [
        "none: did not come back"
    ]
    assert culprit_lines(Culprit(cause="transient", phase="none")) == ["none: transient"]


def test_the_whole_answer_lists_cures_first():
    """Fixes that cure come before those that do not; the optimizer's state is one of them."""
    lines = answer(Culprit(**FOUND, fresh_state=True))
    at = lines.index("Fixes tried:")
    assert [line.split()[:2] for line in lines[at + 1 : at + 4]] == [
        ["cures", "eps"],
        ["cures", "fresh_state"],
        ["no", "lower_lr"],
    ]
    assert "  operator log, module net.0" in lines
    assert "  1. mend it" in lines


def test_a_replay_that_does_not_follow_the_log_is_a_lead():
    """The culprit is then announced as no more than that."""
    fidelity = Fidelity(ok=False, compared=3, note="0 of 3 losses equal")
    lines = answer(Culprit(**FOUND), fidelity=fidelity)
    assert (
        "The replayed losses do not match the log (see Fidelity below): this culprit is a lead, not established."
        in lines
    )
    assert "Fidelity: POOR. 0 of 3 losses equal" in lines


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_reports_show_the_short_form(name):
    """The reports of a scan say the same of a culprit."""
    run = RunReport(name="a", path="a", verdict="failed", ended="crashed", culprit=Culprit(**FOUND))
    shown = REPORTERS[name](Report(runs=(run,), version="1"), RenderOptions(width=200))
    assert all(line in shown for line in culprit_lines(run.culprit))
