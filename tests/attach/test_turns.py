"""Which ticks step another optimizer than the one at fault."""

from __future__ import annotations

import pytest

from postmortem.attach.turns import unlike


@pytest.mark.parametrize(
    ("order", "others"),
    [
        ("DGDGDGDGD", "D"),  # a generator's turn
        ("DDDGDDDGDDDGDD", "G"),  # the third of the discriminator's
        ("DDDGDDDGDDDGDDD", "D"),
        ("DDDD", ""),
        ("DGGDDGDGGG", ""),  # no rounds: nothing is left out
    ],
)
def test_the_rounds_tell_whose_turn_it_is(order: str, others: str) -> None:
    """The tick at fault has not come to its optimizer."""
    turns = [(tick, ord(of)) for tick, of in enumerate(order)]
    assert unlike(turns, len(order)) == {tick for tick, of in enumerate(order) if of in others}


def test_a_tick_that_ended_tells_its_own() -> None:
    """A fault that is noticed after its step."""
    assert unlike([(0, 7), (1, 8), (2, 7), (3, 8)], 2) == {1, 3}
