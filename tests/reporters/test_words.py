"""Safe text, numbers and sparklines."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmortem.core.culprit import Culprit, Fidelity, ReplayResult
from postmortem.core.model import GROWTH
from postmortem.core.printable import listed, number
from postmortem.reporters.replay_text import closing_line, replay_lines
from postmortem.reporters.shared.commands import with_commands
from postmortem.reporters.shared.words import clean, count, heights, sparkline, thinned

values = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(), max_size=40))
def test_cleaned_text_is_printable_and_one_line(text):
    """Whatever a log holds, the output has no control characters and can be encoded."""
    shown = clean(text)
    assert shown.isprintable()
    shown.encode("utf-8")


def test_cleaning_keeps_readable_text():
    """Letters of any language stay, line breaks and escapes become visible."""
    assert clean("Verlust ⟨größer⟩ 损失") == "Verlust ⟨größer⟩ 损失"
    assert clean("a\nb\x1b[0m\udcff") == "a ⏎ b\\x1b[0m\\udcff"
    assert clean("abcdef", 4) == "abc…"


@settings(max_examples=80, deadline=None)
@given(values, st.integers(1, 50))
def test_a_sparkline_fits_and_marks_every_bad_stretch(curve, width):
    """It is never wider than asked; it holds a mark exactly where the curve has a non-finite value."""
    spark = sparkline(curve, width)
    assert len(spark) == min(len(curve), width)
    assert any(c in "×↑↓" for c in spark) == any(not math.isfinite(v) for v in curve)


@settings(max_examples=80, deadline=None)
@given(values)
def test_heights_lie_between_bottom_and_top(curve):
    """Also for values whose difference overflows."""
    assert all(h is None or 0 <= h <= 1 for h in heights(curve))


def test_steep_curves_are_logarithmic_unless_asked_otherwise():
    """An explosion does not flatten what came before; a learning rate keeps the shape of its schedule."""
    assert heights([1.0, 10.0, 100.0]) == [0.0, 0.5, 1.0]
    assert heights([1.0, 50.5, 100.0], linear=True) == [0.0, 0.5, 1.0]


def test_an_outlier_survives_thinning():
    """One spike among a thousand points is still there at thirty."""
    curve = [1.0] * 1000
    curve[437] = 90.0
    assert 90.0 in thinned(curve, 30)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (math.nan, "nan"), (-math.inf, "-inf"), (3e-4, "0.0003"), (1e-5, "1e-05"), (2.31049, "2.31")],
)
def test_numbers_are_short(value, shown):
    """Four significant digits, as people read them."""
    assert number(value) == shown


@pytest.mark.parametrize(
    ("action", "words", "commands"),
    [
        ("lower the lr to 1e-4", "lower the lr to 1e-4", []),
        ("postmortem replay a --step 3", "", ["postmortem replay a --step 3"]),
        ("postmortem replay a  (needs weights; none found)", "needs weights; none found:", ["postmortem replay a"]),
        ("Rerun it: `postmortem replay a`", "Rerun it:", ["postmortem replay a"]),
        (
            "Save weights: then `postmortem replay a` names the line",
            "Save weights: then this names the line:",
            ["postmortem replay a"],
        ),
        ("set `lr` lower", "set `lr` lower", []),
    ],
)
def test_commands_are_taken_out_of_sentences(action, words, commands):
    """A command is shown on its own; what is left reads as a sentence."""
    assert with_commands(action) == (words, commands)


def test_counts_and_lists_read_well():
    """One run, two runs, and how many more."""
    assert [count(1, "run"), count(1200, "run"), count(2, "loss")] == ["1 run", "1,200 runs", "2 losses"]
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_a_growth_before_the_fault_stands_first() -> None:
    """The operator is where the values leave the range: it is not the headline of a training that had diverged."""
    said = "the loss had left its level 3 steps before the fault, at step 2: 5.742 before, 1.094e+21 in the last"
    culprit = Culprit(cause="forward-op", phase="forward", op="pow", file="/x/train.py", line=24, tensor={GROWTH: said})
    result = ReplayResult(
        target="a", recipe="", checkpoint="", step=5, fidelity=Fidelity(ok=True), culprit=culprit, command=("python",)
    )
    closing = closing_line(result) or ""
    assert closing.startswith(f"culprit: the training diverged: {said}; the first value that is not finite arises at ")
    lines = list(replay_lines(result, 400))
    assert f"Culprit: the training diverged: {said}" in lines
    assert not [line for line in lines if line.strip().startswith("values:")]
