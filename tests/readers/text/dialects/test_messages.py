"""What a program reports in words about itself."""

from __future__ import annotations

from postmortem.readers.text.dialects.messages import _SENTENCES, Messages


def test_every_anchor_contains_a_needle() -> None:
    """The few needles leave out no row that one of the signatures could match."""
    missed = [a for s in _SENTENCES for a in s.anchors if not any(needle in a for needle in Messages.needles)]
    assert missed == []
