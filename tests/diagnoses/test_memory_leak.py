"""Memory that grows until there is none left."""

from __future__ import annotations

import numpy as np

from postmortem.core.model import Event
from postmortem.diagnoses.memory_leak import MemoryLeak
from tests.diagnoses.cases import from_, quiet, tells


@tells(MemoryLeak, root="memory-growth")
def memory_that_grows(course):
    return course(memory_gb=from_(100, lambda x: x + np.arange(len(x)) / 40))


@quiet(
    MemoryLeak,
    ended="out-of-memory",
    event_list=[Event(kind="cuda-oom", severity="error", message="CUDA out of memory", step=399)],
)
def out_of_memory_at_a_constant_level(course):
    return course()


def test_memory_leak_explains_the_crash(story, course):
    """Memory that grew is the root, the out-of-memory its consequence."""
    event = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", file="train.out", line=9, step=399)
    tags = course(memory_gb=from_(100, lambda x: x + np.arange(len(x)) / 40))
    report = story(tags, event_list=[event], ended="out-of-memory")
    assert report.diagnosis.name == "memory-leak"
    assert next(f for f in report.findings if f.name == "crash").because_of == report.findings[0].id
