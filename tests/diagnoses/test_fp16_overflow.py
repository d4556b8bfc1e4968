"""A value beyond the range of half precision."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.fp16_overflow import Fp16Overflow
from tests.diagnoses.cases import from_, quiet, tells


@tells(Fp16Overflow, root="inf-onset", config={"precision": "16-mixed"})
def an_infinite_loss_in_fp16(course):
    return course(loss=from_(200, np.inf), grad_norm=from_(200, np.inf))


@quiet(Fp16Overflow, config={"precision": "bf16-mixed"})
def an_infinite_loss_in_bf16(course):
    return course(loss=from_(200, np.inf), grad_norm=from_(200, np.inf))


def test_fp16_overflow(story, course):
    """An infinite loss in a run that says it computes in fp16."""
    report = story(course(loss=from_(200, np.inf), grad_norm=from_(200, np.inf)), config={"precision": "16-mixed"})
    assert report.diagnosis.name == "fp16-overflow"
    assert any("precision" in line for line in report.diagnosis.evidence_for)
