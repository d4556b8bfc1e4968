"""A pattern that is compiled on first use behaves as one that `re` compiled at once."""

from __future__ import annotations

import pickle
import re

import pytest

from postmortem.core.patterns import Later, later


@pytest.mark.parametrize("method", ["search", "match", "fullmatch", "findall"])
@pytest.mark.parametrize("text", ["loss 12", "12", "", "LOSS 3 of 4"])
def test_it_finds_what_re_finds(method: str, text: str) -> None:
    """By every method, before and after it was compiled."""
    own, usual = later(r"(?:loss )?(\d+)", re.I), re.compile(r"(?:loss )?(\d+)", re.I)
    for _ in range(2):
        found, expected = getattr(own, method)(text), getattr(usual, method)(text)
        assert str(found) == str(expected)


def test_it_is_compiled_on_first_use_only() -> None:
    """A pattern that nobody uses is never compiled; even a wrong one."""
    wrong = later("(")
    with pytest.raises(re.error):
        wrong.search("x")


def test_its_attributes_are_those_of_a_pattern() -> None:
    """Pages of `explain` show its text and its groups; processes get it as they get a compiled one."""
    own = later(r"(?P<n>\d)", re.M)
    assert (own.pattern, dict(own.groupindex), own.flags) == (r"(?P<n>\d)", {"n": 1}, re.compile("", re.M).flags)
    again = pickle.loads(pickle.dumps(own))
    assert isinstance(again, Later)
    assert again.search("a7")["n"] == "7"
