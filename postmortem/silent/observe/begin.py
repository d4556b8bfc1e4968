"""Called in each process of the program once torch is imported."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
from typing import TYPE_CHECKING, Any

from postmortem.silent.observe.points import Points
from postmortem.silent.observe.recorder import Recorder
from postmortem.silent.observe.watchers import WATCHERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def begin(session: Path, plan: dict[str, Any], note: Callable[[str], None]) -> Recorder:
    """Observes this process: `plan` has `steps` and `seconds`, after which enough was seen, or None, and may have
    `closely`, as `Recorder` takes it.

    A process that the program forks is not observed, but for those that `multiprocessing` starts.
    """
    limits = {"steps": plan.get("steps"), "seconds": plan.get("seconds")}
    recorder = Recorder(session / "silent", **limits, closely=plan.get("closely"))
    for broken in WATCHERS.broken:
        note(f"{broken.where}: {broken.why}")
    points = Points(recorder, [kind(recorder) for kind in WATCHERS], note)
    recorder.parameters.patch()
    points.install()
    atexit.register(_ended, recorder)
    os.register_at_fork(after_in_child=recorder.forked)
    multiprocessing.util.register_after_fork(recorder, _resumed)
    multiprocessing.util.Finalize(None, _ended, args=(recorder,), exitpriority=100)
    return recorder


def _ended(recorder: Recorder) -> None:
    recorder.finish(ended=True)


def _resumed(recorder: Recorder) -> None:
    """In a child of `multiprocessing`, which has forgotten what is to be done at its end. A loader's worker trains
    nothing and has nothing to tell."""
    recorder.resume()
    multiprocessing.util.Finalize(
        None, lambda: recorder.finish(ended=True) if recorder.steps else None, exitpriority=100
    )
