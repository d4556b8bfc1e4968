"""A file that gave nothing."""

from __future__ import annotations

from postmortem.core.model import Problem
from postmortem.detectors.unreadable_file import UnreadableFile
from tests.detectors.cases import fires, quiet


@fires(UnreadableFile, problems=[Problem(path="a", what="cannot be read: permission denied", extent="file")])
def a_file_without_permission(base):
    return base


@quiet(
    UnreadableFile, problems=[Problem(path="a", what="a record's checksum does not fit", offset=10, lost="one record")]
)
def one_record_is_lost(base):
    """Damage inside a file is corrupt-record: the rest was read."""
    return base
