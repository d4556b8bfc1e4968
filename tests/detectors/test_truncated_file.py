"""A file that ends inside a record."""

from __future__ import annotations

from postmortem.core.model import Problem
from postmortem.detectors.truncated_file import TruncatedFile
from postmortem.readers.shared.decode import leading_nul_problem
from tests.detectors.cases import fires, quiet


@fires(TruncatedFile, problems=[Problem(path="a", what="the file ends inside a record", offset=10, extent="cut")])
def a_file_cut_at_its_end(base):
    return base


@fires(
    TruncatedFile,
    problems=[leading_nul_problem("a", 5000)],
)
def nuls_before_the_text(base):
    return base


@quiet(
    TruncatedFile, problems=[Problem(path="a", what="a line longer than 1000 characters was cut", line=3, kind="limit")]
)
def a_limit_of_the_reader(base):
    """What the reader leaves out by itself is no damage of the file."""
    return base
