"""Damage inside a file."""

from __future__ import annotations

import postmortem
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


def _severity(folder, text: bytes) -> str:
    """The severity of the damage in a log."""
    (folder / "train.log").write_bytes(text)
    [run] = postmortem.scan(folder).runs
    [finding] = [f for f in run.findings if f.name == "corrupt-record"]
    return finding.severity


def test_nul_bytes_in_the_place_of_a_row_are_info(tmp_path) -> None:
    """A row of a log that is lost changes nothing that the others show; where more is lost, a person should look."""
    rows = [f"step {s} loss {2 - s / 900:.4f}\n".encode() for s in range(200)]
    head, tail = b"".join(rows[:100]), b"".join(rows[101:])
    assert _severity(tmp_path, head + b"\0" * 70 + b"984\n" + tail) == "info"
    assert _severity(tmp_path, head + b"\0" * 5000 + b"\n" + tail) == "warning"
