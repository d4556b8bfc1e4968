"""Errors survive the way from a worker process."""

from __future__ import annotations

import copy
import pickle

import pytest

from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError, UnreadableCheckpoint
from postmortem.core.model import Problem

ERRORS = [
    MissingExtra("replay", "replay"),
    NotFoundError("no such file"),
    UnreadableCheckpoint(Problem(path="step_1.pt", what="truncated")),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled_and_copied(error: PostmortemError) -> None:
    """The copy says the same and has the same fields."""
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(other), str(other)) == (type(error), str(error))
        assert getattr(other, "problem", None) == getattr(error, "problem", None)
