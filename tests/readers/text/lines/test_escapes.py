"""Terminal control sequences: by columns, and one by one."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from postmortem.readers.text.lines.escapes import without_colours, without_escapes

_SPARE = b"\n" * 64
_PIECES = (
    *(b"\x1b[0m", b"\x1b[1;32m", b"\x1b[38;5;208m", b"\x1b[K", b"\x1b[?25l", b"\x1b[2J", b"\x1b[A", b"\x1b[1;1;1A"),
    *(b"\x1b", b"\x1b[", b"\x1b]0;title\x07", b"\x1b(B", b"\x1b[1", b"[0m", b"1.5", b"\n", b"\r", b"\t", b"\xe9"),
)


@given(st.lists(st.sampled_from(_PIECES), max_size=30).map(b"".join))
@example(b"\x1b\x1b[0m[0m\n")
@example(b"a\x1b[" + b"1;" * 30 + b"m\n")
@example(b"\x1b[1")
def test_columns_read_what_the_pattern_reads(text: bytes) -> None:
    """Without colours a block has the bytes that the pattern leaves, and its control characters are found there."""
    data = text + _SPARE
    raw = np.frombuffer(data, np.uint8)[: len(text)]
    plain = without_colours(data, len(text), np.flatnonzero(raw <= 27))
    if plain is None:
        return
    assert plain.data[: plain.size] == without_escapes(text)
    assert plain.data[plain.size :] == _SPARE
    left = np.frombuffer(plain.data, np.uint8)[: plain.size]
    assert plain.at.tolist() == np.flatnonzero(left <= 27).tolist()


def test_colours_are_read_by_columns() -> None:
    """Colours and a cleared line need no pattern; a cursor that moves to another line does."""

    def by_columns(text: bytes) -> bool:
        at = np.flatnonzero(np.frombuffer(text, np.uint8) <= 27)
        return without_colours(text + _SPARE, len(text), at) is not None

    assert by_columns(b"\x1b[1;32mstep 1\x1b[0m loss 2.0\x1b[K\n")
    assert not by_columns(b"\x1b[1;32mstep 1\x1b[0m\n\x1b[Aloss 2.0\n")
