"""Places in SARIF are URIs, whatever a file is called."""

from __future__ import annotations

from postmortem.reporters.sarif import file_uri


def test_a_name_that_is_no_text_still_makes_a_uri() -> None:
    """A byte of a file name that is no UTF-8 is percent-encoded; a surrogate that stands for no byte becomes a question
    mark."""
    assert file_uri("a\udcffb") == "a%FFb"
    assert file_uri("a\ud800b") == "a%3Fb"
