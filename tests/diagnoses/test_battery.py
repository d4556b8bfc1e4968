"""What holds for every registered diagnosis: its page, its cases, and no story where nothing was found.

The cases stand in the test file of each diagnosis, see ``cases.py``.
"""

from __future__ import annotations

import ast
import inspect

import numpy as np
import pytest
from click.testing import CliRunner

from postmortem.cli.main import cli
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


def emitted(cause):
    """The names that the code of a cause gives to its stories: texts in the first argument of `diagnosis`."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(cause)))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "diagnosis":
            name = node.args[0]
            sources = (
                [name]
                if not isinstance(name, ast.Name)
                else [
                    n.value
                    for n in ast.walk(tree)
                    if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name.id for t in n.targets)
                ]
            )
            for source in sources:
                values = source.value.values if isinstance(source, ast.Subscript) else [source]
                names |= {c.value for v in values for c in _texts(v)}
    return names | {cause.name}


def _texts(node):
    """The text constants that an expression may be: of a conditional, both sides."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    return [node] if isinstance(node, ast.Constant) else []


@pytest.mark.parametrize("cause", list(CAUSES), ids=lambda c: c.name)
def test_every_name_that_a_report_shows_can_be_explained(cause):
    """`postmortem explain NAME` has a page for each name that a cause gives to its diagnosis."""
    for name in emitted(cause):
        answer = CliRunner().invoke(cli, ["explain", name])
        assert answer.exit_code == 0, name
        assert name in answer.output


def test_a_crash_is_explained_by_the_name_that_its_report_shows():
    """The diagnosis of a crash is called "crash: SIGNATURE": that is the page of the signature."""
    assert "cuda-oom" in CliRunner().invoke(cli, ["explain", "crash: cuda-oom"]).output
