"""What a report says first once a replay has found the culprit, and how surely it says it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from postmortem.core.culprit import Culprit, Fidelity
from postmortem.core.model import OUTSIDE
from postmortem.core.report import Report
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.replay_text import culprit_text
from postmortem.reporters.shared.culprit_words import brief, from_run, source_lines

FOR_PEOPLE = ["text", "markdown", "html"]
LOG_ALONE = {"text": "log alone", "markdown": "From the log alone", "html": "From the log alone"}
REFUTED_BY = "the same step replayed in fp64 stays finite"


@pytest.fixture
def replayed(everything):
    """A failed run whose replay found the culprit."""
    return everything["exp7"]


def shown(run, name):
    text = REPORTERS[name](Report(runs=(run,), version="1"), RenderOptions(width=200))
    return text[text.index("<main>") :] if name == "html" else text


def with_fidelity(run, **fidelity):
    return replace(run, culprit=replace(run.culprit, fidelity=Fidelity(**fidelity)))


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_a_culprit_comes_before_the_cause_that_the_log_allowed(replayed, name):
    """Line, operator, step and cure first; the diagnosis below is called what the log alone showed."""
    text = shown(replayed, name)
    cause = text.index("exploding-gradients")
    for part in ("model.py:41", "operator aten::sqrt", "step 4820", "eps", "1e-8 under the root"):
        assert text.index(part) < cause, part
    assert text.index("model.py:41") < text.index(LOG_ALONE[name]) < cause
    assert REFUTED_BY not in text


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_without_a_replay_the_diagnosis_stands_as_before(one_failed, name):
    """With the observation that would refute it."""
    text = shown(one_failed.runs[0], name)
    assert LOG_ALONE[name] not in text
    assert REFUTED_BY in text


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_a_replay_that_does_not_follow_the_log_is_only_a_lead(replayed, name):
    """The diagnosis stays in front, and the culprit is called a lead."""
    text = shown(with_fidelity(replayed, ok=False, compared=3, note="0 of 3 losses equal"), name)
    assert text.index("exploding-gradients") < text.index("model.py:41")
    assert "lead, not established" in text
    assert "POOR. 0 of 3 losses equal" in text
    assert REFUTED_BY in text


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_a_report_says_how_surely_a_culprit_is_known(replayed, name):
    """How it was established, and the fidelity of the replay."""
    text = shown(with_fidelity(replayed, ok=True, compared=70, exact=69, note="69 of 70 losses exact"), name)
    assert "stablished" in text
    assert "cured" in text
    assert "good, it follows the log. 69 of 70 losses exact" in text


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_nothing_compared_is_no_match(replayed, name):
    """A program that was watched is no rerun: no loss was compared, and no answer says that losses match."""
    note = "the program itself was watched, not a rerun: there is nothing to compare"
    text = shown(with_fidelity(replayed, ok=True, note=note), name)
    assert note in text
    assert "follows the log" not in text
    assert "yes (the numbers" not in text


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_a_replay_without_a_culprit_changes_no_diagnosis(one_failed, name):
    """The reason why there is none is told below it."""
    nothing = Culprit(cause="none", phase="none", how=("every step stayed finite",))
    text = shown(replace(one_failed.runs[0], culprit=nothing), name)
    assert text.index("exploding-gradients") < text.index("every step stayed finite")
    assert REFUTED_BY in text


def test_runs_with_one_culprit_are_one_group(replayed):
    """Whatever the log alone said of each."""
    other = replace(replayed, name="exp8", diagnosis=replace(replayed.diagnosis, name="bad-batch"))
    text = REPORTERS["text"](Report(runs=(replayed, other), version="1"), RenderOptions(width=120))
    assert "forward-op: aten::sqrt at model.py:41" in text
    assert "2 runs" in text.splitlines()[2]


def test_a_culprit_in_a_few_words():
    """Its line where there is one, else its operator, parameter or cause."""
    assert brief(Culprit(cause="forward-op", phase="forward", op="log", file="/a/b/c.py", line=3)) == "log at c.py:3"
    assert brief(Culprit(cause="bad-parameter", phase="parameters", param="w")) == "w"
    assert brief(Culprit(cause="divergence", phase="optimizer")) == "divergence"


def test_a_path_is_shown_from_the_run(tmp_path, replayed, monkeypatch):
    """Below its folder relative to that, also through a link; else from here, else in full; what is relative stays."""
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    run = replace(replayed, path=str(tmp_path / "link" / "a"))
    assert from_run(str(folder / "src" / "train.py"), run) == str(Path("src", "train.py"))
    monkeypatch.chdir(tmp_path)
    assert from_run(str(tmp_path / "lib" / "net.py"), run) == str(Path("lib", "net.py"))
    assert from_run(os.path.abspath("/elsewhere/net.py"), run) == os.path.abspath("/elsewhere/net.py")
    assert from_run("net.py", run) == "net.py"


def test_the_source_is_that_of_the_replay(tmp_path):
    """Lines around the one at fault; only that one where the file has changed since."""
    file = tmp_path / "net.py"
    file.write_text("def f(x):\n    y = x - 1\n    return y.log()\n")
    found = Culprit(cause="forward-op", phase="forward", file=str(file), line=3, code="    return y.log()")
    assert source_lines(found) == [(1, "def f(x):"), (2, "    y = x - 1"), (3, "    return y.log()")]
    assert source_lines(replace(found, code="return y.sqrt()")) == [(3, "return y.sqrt()")]


@pytest.mark.parametrize(
    ("grade", "words"),
    [
        ("cured", "the cause is established: a rerun with it repaired does not fail"),
        ("observed", "the cause is seen failing in a rerun; that a repair helps was not shown"),
        ("inferred", "the cause is inferred from reruns, not shown directly"),
    ],
)
def test_the_page_says_beside_the_culprit_how_sure_it_is(replayed, grade, words):
    """Of the cause, not of a fix; a lead that is not established bears no such words."""
    graded = replace(replayed, culprit=replace(replayed.culprit, established=grade))
    assert f'<h3>Culprit <span class="dim">{words}. This is about the cause' in shown(graded, "html")
    poor = with_fidelity(graded, ok=False, compared=3, exact=0)
    assert words not in shown(poor, "html")


def test_a_bound_that_cures_values_far_outside_their_range_establishes_no_cause(replayed):
    """A bound behind any cause makes the step finite: only the operator is known."""
    outside = "1 of 3 values lies outside, down to -0.0142"
    bounded = replace(replayed, culprit=replace(replayed.culprit, established="cured", tensor={OUTSIDE: outside}))
    page = shown(bounded, "html")
    assert "the operator is established, the cause is not" in page
    assert "the cause is established" not in page
    assert "grade 2 of 3" in page
    assert "takes its place" not in page
    assert "established: cured by a bound on its input" in "\n".join(culprit_text(bounded.culprit, 200))
