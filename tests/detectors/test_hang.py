"""A run that stood still."""

from __future__ import annotations

from postmortem.core.reading import Reading
from postmortem.detectors.hang import Hang
from tests.detectors.cases import fires, quiet


@fires(Hang, step=399, ended="hung")
def a_run_that_hung(base):
    return base


@quiet(Hang, ended="completed", readings=[Reading(source="csv", path="r", stopped=1.8e9)])
def a_file_that_was_touched_long_after_the_end(base):
    """A completed run did not hang, whenever its file was last written."""
    return base
