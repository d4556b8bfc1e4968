"""What holds for every registered diagnosis: its page, its cases, and no story where nothing was found.

The cases stand in the test file of each diagnosis, see ``cases.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.core.view import View
from postmortem.diagnoses import CAUSES
from tests.cases import cases


def asked(report):
    """The cause whose story the report tells: the first by priority that fits, None where none does."""
    return next((cause for cause in CAUSES if cause.diagnose(View(report.run), report.findings) is not None), None)


@pytest.mark.parametrize("case", cases(CAUSES, "tells"), ids=str)
def test_the_cause_is_named(case, story, course):
    """One planted cause gives its diagnosis, with the earliest finding as root and with advice."""
    run = dict(case.options)
    name, root, step = run.pop("name", case.of.name), run.pop("root"), run.pop("step", None)
    report = story(case.make(course), **run)
    assert report.diagnosis is not None
    assert report.diagnosis.name == name
    assert asked(report) is case.of
    assert root is None or report.findings[0].name == root
    assert report.diagnosis.findings[0] == report.findings[0].id
    assert step is None or report.findings[0].step == step
    assert report.diagnosis.next


@pytest.mark.parametrize("case", cases(CAUSES, "quiet"), ids=str)
def test_quiet_on_what_only_looks_like_it(case, story, course):
    """A run that resembles the cause has another diagnosis or none."""
    assert asked(story(case.make(course), **case.options)) is not case.of


@pytest.mark.parametrize("cause", list(CAUSES), ids=lambda c: c.name)
def test_every_cause_has_a_page_and_survives_nothing(cause, story):
    """A docstring for `explain`, and None for a run without findings."""
    assert cause.__doc__
    run = story({"loss": np.ones(3)}).run
    assert cause.diagnose(View(run), ()) is None
