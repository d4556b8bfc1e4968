"""Damage inside a file."""

from __future__ import annotations

from postmortem.core.model import Problem
from postmortem.detectors.corrupt_record import CorruptRecord
from tests.detectors.cases import fires, quiet


@fires(CorruptRecord, problems=[Problem(path="a", what="a record's checksum does not fit", offset=10)])
def a_checksum_that_does_not_fit(base):
    return base


@quiet(CorruptRecord, problems=[Problem(path="a", what="a line longer than 1000 characters", line=3, kind="limit")])
def a_limit_of_the_reader(base):
    """What the reader leaves out by itself is no damage of the file."""
    return base
