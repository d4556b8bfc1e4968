"""Numbers that stand in a log more than once are found whatever the pieces in which it is looked through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path

LINES = st.tuples(
    st.integers(-1, 2), st.integers(1, 3), st.sampled_from(["loss {}", "lr {}", "loss {} lr {}", ""]), st.integers(1, 2)
)


@given(lines=st.lists(LINES, max_size=40).map(lambda lines: sorted(lines, key=lambda line: line[1])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_make_no_difference(lines: list[tuple[int, int, str, int]], tmp_path: Path) -> None:
    """A number is dropped if it equals the last one of its rank and tag at the same step, whatever the pieces."""
    text, expected = "", []
    last = {(-1, "loss"): (1, 3)}
    for rank, step, what, number in lines:
        prefix = f"[rank{rank}]: " if rank >= 0 else ""
        text += f"{prefix}step {step}: {what.format(number, number)}\n"
        for tag in ("loss", "lr"):
            if tag in what:
                if last.get((rank, tag)) != (step, number):
                    expected.append((rank, step, tag, number))
                last[rank, tag] = step, number
    path = tmp_path / "train.log"
    path.write_text("step 1: loss 3\n" + text)
    for at_once in (1, 3, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("postmortem.readers.text.steps.repeats._ROWS_AT_ONCE", at_once)
            points = read_text(path).points
        found = [
            (int(r), int(s), points.tags[c], int(v))
            for r, s, c, v in zip(points.rank, points.step, points.code, points.value, strict=True)
        ]
        assert found == [(-1, 1, "loss", 3), *expected]
