"""Styled words are wrapped, cut and coloured as rich does it."""

from __future__ import annotations

from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from postmortem.reporters.styled import Styled

WORDS = st.tuples(
    st.text(st.sampled_from("ab é—…ß漢字👍🏽\u0301 \u200b,.\n"), max_size=60),
    st.sampled_from(["", "dim", "bold red", "bold yellow", "bold magenta", "bold green", "cyan"]),
)


def of_rich(words: list[tuple[str, str]], width: int, color: bool) -> list[str]:
    """The lines of `words` as rich wraps and prints them."""
    out = StringIO()
    console = Console(
        file=out,
        width=10**6,
        color_system="standard" if color else None,
        force_terminal=color,
        legacy_windows=False,
        _environ={},
    )
    for line in Text.assemble(*words).wrap(console, width, overflow="fold"):
        line.rstrip()
        console.print(line, soft_wrap=True)
    return out.getvalue().splitlines(keepends=True)


@given(words=st.lists(WORDS, max_size=5), width=st.integers(4, 40), color=st.booleans())
def test_as_rich(words: list[tuple[str, str]], width: int, color: bool) -> None:
    """Wide characters, combining ones, words longer than a line, blanks at the end of one."""
    assert [line.rendered(color) for line in Styled(*words).wrapped(width)] == of_rich(words, width, color)


@given(words=st.lists(WORDS, max_size=5), width=st.integers(2, 40))
def test_shortened(words: list[tuple[str, str]], width: int) -> None:
    """The beginning of a text is no wider than asked for, and as much as fits, a wide character more or less."""
    text = Styled(*words)
    short = text.shortened(width)
    assert text.plain.startswith(short.plain)
    measured = Text(short.plain).cell_len
    assert measured <= width
    assert short.plain == text.plain or measured >= width - 2
