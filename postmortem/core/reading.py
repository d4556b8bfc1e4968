"""What a reader returns: numbers as columns, events, problems and facts about the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.core.points import Points
from postmortem.core.skipped import Skips

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from postmortem.core.machine import MachineLog
    from postmortem.core.model import Ended, Event, Problem


@dataclass(slots=True, kw_only=True)
class Reading:
    """Everything that a reader read from one file.

    `skipped` counts what was seen and left out on purpose (histograms, images, carried-over values), by reason;
    `notes` are sentences for `postmortem show` (how steps were inferred, which dialect explained how many
    lines); `started` and `stopped` are seconds since the epoch; `ended` is None if the file does not show it.
    `step_axis` says what the step is: "step", "iteration", "epoch", "row".
    """

    source: str
    path: str
    points: Points = field(default_factory=Points.empty)
    events: list[Event] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    skipped: Skips = field(default_factory=Skips)
    notes: list[str] = field(default_factory=list)
    ended: Ended | None = None
    started: float | None = None
    stopped: float | None = None
    step_axis: str = "step"
    blanks: dict[str, int] = field(default_factory=dict)
    """How many cells of a tag hold nothing (null, an empty cell), in a table."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """How many cells of a tag hold text that is no number, in a table; a Problem says so."""
    row_steps: NDArray[np.int64] | None = None
    """The steps of all rows of a table that has such cells."""
    machine: MachineLog | None = None
    """What a monitor logged of the machine, beside the training."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about the job: "job_id", "run_id", "host", "world_size", "ranks", "exit_code", "snapshot", "plan" for
    `core.training_length`, "listed by", the column that names the rows of a table of results, and "interleaved", the
    counter of a table that several programs wrote at once."""
