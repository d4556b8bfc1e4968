"""postmortem explains why a PyTorch training run failed.

    import postmortem

    report = postmortem.scan("runs/")             # all runs below a folder: a Report, a collection of RunReports
    postmortem.scan(frame)                        # the same for a pandas DataFrame with a step column
    run = postmortem.load("runs/exp7")            # the numbers and events of one run: a Run
    postmortem.judge(run)                         # findings, diagnosis and verdict of one run: a RunReport
    postmortem.compare("runs/good", run)          # the first step at which two runs differ: a Comparison
    postmortem.checkpoints(run)                   # health of saved weights: a list of Health (needs torch)
    postmortem.replay(run)                        # reruns the failing step, names the culprit (needs torch)
    postmortem.localize(train_step)               # the same for a step of your own program (needs torch)
    postmortem.assert_healthy("runs/smoke")       # in a test: AssertionError if a run is not healthy
    with postmortem.watch(): train()              # names the culprit at the first non-finite value (needs torch)
    postmortem.inspect(model)                     # a row per tensor: shape, dtype, mean, std, NaN, … (needs torch)

A run can be given as a `Run`, as a `RunReport` or as a path. `print` shows a result as the command line does, and a
notebook displays it.

Public names are imported on first use, so that importing the package is fast. `postmortem.replay` and
`postmortem.checkpoints` are also packages (``from postmortem.replay.model import TrainStep``): these modules are
callable.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from postmortem import display as _display  # noqa: F401 - before anything can be shown
from postmortem._lazy import lazy
from postmortem._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

    from postmortem import plugins as plugins
    from postmortem.api import checkpoints, compare, judge, load, localize, replay, scan
    from postmortem.attach.in_process import watch
    from postmortem.attach.inspection import inspect
    from postmortem.checkpoints.health import Health
    from postmortem.core.comparison import Comparison
    from postmortem.core.config import Config
    from postmortem.core.culprit import Culprit, Fix, ReplayResult
    from postmortem.core.errors import (
        MissingExtra,
        NotFoundError,
        PostmortemError,
        ReplayError,
        UnreadableCheckpoint,
        UsageError,
    )
    from postmortem.core.model import Diagnosis, Event, Finding, Problem
    from postmortem.core.report import Report, RunReport
    from postmortem.core.run import Run
    from postmortem.integrations.testing import assert_healthy
    from postmortem.replay.model import TrainStep
else:
    from postmortem import checkpoints, replay

__all__ = [
    "Comparison",
    "Config",
    "Culprit",
    "Diagnosis",
    "Event",
    "Finding",
    "Fix",
    "Health",
    "MissingExtra",
    "NotFoundError",
    "PostmortemError",
    "Problem",
    "ReplayError",
    "ReplayResult",
    "Report",
    "Run",
    "RunReport",
    "TrainStep",
    "UnreadableCheckpoint",
    "UsageError",
    "__version__",
    "assert_healthy",
    "checkpoints",
    "compare",
    "inspect",
    "judge",
    "load",
    "localize",
    "replay",
    "scan",
    "watch",
]

_WHERE: dict[str, str | None] = {
    "Comparison": "postmortem.core.comparison",
    "Config": "postmortem.core.config",
    "Culprit": "postmortem.core.culprit",
    "Diagnosis": "postmortem.core.model",
    "Event": "postmortem.core.model",
    "Finding": "postmortem.core.model",
    "Fix": "postmortem.core.culprit",
    "Health": "postmortem.checkpoints.health",
    "MissingExtra": "postmortem.core.errors",
    "NotFoundError": "postmortem.core.errors",
    "PostmortemError": "postmortem.core.errors",
    "Problem": "postmortem.core.model",
    "ReplayError": "postmortem.core.errors",
    "ReplayResult": "postmortem.core.culprit",
    "Report": "postmortem.core.report",
    "Run": "postmortem.core.run",
    "RunReport": "postmortem.core.report",
    "TrainStep": "postmortem.replay.model",
    "UnreadableCheckpoint": "postmortem.core.errors",
    "UsageError": "postmortem.core.errors",
    "assert_healthy": "postmortem.integrations.testing",
    "compare": "postmortem.api",
    "inspect": "postmortem.attach.inspection",
    "judge": "postmortem.api",
    "load": "postmortem.api",
    "localize": "postmortem.api",
    "plugins": None,
    "scan": "postmortem.api",
    "watch": "postmortem.attach.in_process",
}

__getattr__, __dir__ = lazy(__name__, _WHERE)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext postmortem``: the magic ``%postmortem`` and ``df.postmortem``."""
    from postmortem.integrations.jupyter import register

    register(shell)


if "pandas" in sys.modules:  # else its users do without df.postmortem, and this import without pandas
    import postmortem.integrations.pandas as _accessor  # noqa: F401


class _Verb(ModuleType):
    """A package that can be called as the function of its name in `postmortem.api`.

    Help and signature are those of the function, which is imported when one of them is asked for.
    """

    @property
    def __call__(self) -> Callable[..., Any]:
        from postmortem import api

        return cast("Callable[..., Any]", getattr(api, self.__name__.rpartition(".")[2]))

    @property
    def __signature__(self) -> Signature:
        from inspect import signature

        return signature(self.__call__)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        from inspect import getdoc

        verb, package = self.__call__, vars(self)["__doc__"]
        return f"{verb.__name__}{self.__signature__}\n\n{getdoc(verb)}\n\n{package}"


if not TYPE_CHECKING:
    replay.__class__ = checkpoints.__class__ = _Verb
