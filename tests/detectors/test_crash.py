"""An error in the log."""

from __future__ import annotations

from postmortem.core.model import Event
from postmortem.core.reading import Reading
from postmortem.detectors.crash import Crash
from tests.detectors.cases import fires, quiet

OUT_OF_MEMORY = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", line=7, step=399)


@fires(Crash, step=399, event_list=[OUT_OF_MEMORY])
def an_exception_at_the_end(base):
    return base


@quiet(Crash, event_list=[OUT_OF_MEMORY], ended="completed")
def an_exception_that_the_run_survived(base):
    """Reported as a note: the program caught it."""
    return base


@fires(Crash, step=399, readings=[Reading(source="wandb", path="run-x.wandb", facts={"exit_code": 1})], ended="crashed")
def a_recorded_exit_code(base):
    """The log has no message, but W&B recorded that the program failed."""
    return base


@quiet(Crash, readings=[Reading(source="wandb", path="run-x.wandb", facts={"exit_code": 255})], ended="crashed")
def a_recorded_stop_by_hand(base):
    """W&B records 255 for a KeyboardInterrupt."""
    return base
