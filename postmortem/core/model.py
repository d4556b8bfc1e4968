"""The data types of a report: problems, events, findings, diagnoses, checkpoints and sources.

All fields hold plain Python values, so that a report can be written as JSON without conversion (`json_value` replaces
non-finite numbers by strings).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from postmortem.core.display import as_html

SCHEMA_VERSION = 1
GROWTH = "growth"
"""Key in `Culprit.tensor`: the growth of the loss that ended in the fault, in one sentence."""
DERIVATIVE = "derivative"
"""Key in `Culprit.tensor`: in the backward pass, the operation that computes the derivative; the tensors are its."""
MASKED = "masked_rows"
"""Key in `Culprit.tensor`, and in the statistics of the input of a softmax: rows that hold only -inf."""
OUTSIDE = "outside"
"""Key in `Culprit.tensor`: how many values lie how far outside the range of the operator, in words."""
RISE = "rise"
"""Key in `Culprit.tensor`: how a finite loss left its course without any update, in one sentence."""
DEATH = "death"
"""Key in `Culprit.tensor`: which units died at which step, and what the program did to them, in one sentence."""
RATE = "learning_rate"
"""Key in `Culprit.tensor`: how the learning rate rose, where that is the cause, in one sentence."""

Severity = Literal["error", "warning", "info"]
Verdict = Literal["failed", "suspect", "healthy", "not-judged"]
Ended = Literal[
    "completed",
    "crashed",
    "out-of-memory",
    "killed",
    "time-limit",
    "preempted",
    "interrupted",
    "hung",
    "cut",
    "running",
    "unknown",
]
Strength = Literal["certain", "likely", "possible"]
"""How sure a diagnosis is: the log proves it; it is the best explanation; it is one of several."""
ProblemKind = Literal["damage", "limit", "settings", "skipped"]
"""`damage`: bytes or values of the run are lost; `limit`: more than a reader takes; `settings`: a configuration that is
not understood; `skipped`: a file that was not opened although it may hold numbers."""
Extent = Literal["row", "records", "cut", "file"]
"""How much of a file is damaged: at most a row of a log can be lost; some records; the file ends, or begins, within its
records; nothing of it could be read."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
VERDICTS: tuple[Verdict, ...] = ("failed", "suspect", "not-judged", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Damage in a file, or a limit that was reached: where, what was still read, and what was lost (empty: nothing).

    `offset` is in bytes from the start of the file. `line` is 1-based and counts ``\n`` only. `extent` is that of a
    damage: the detectors truncated-file, corrupt-record and unreadable-file go by it.
    """

    path: str
    offset: int | None = None
    line: int | None = None
    what: str
    kept: str = ""
    lost: str = ""
    kind: ProblemKind = "damage"
    extent: Extent = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A message of a log, as opposed to a number.

    kind: id of the signature. line: 1-based line in `file` (for a traceback its last line). wall_time: seconds since
    the epoch, or NaN. fields: values extracted from the message, as plain JSON types.
    """

    kind: str
    severity: Severity
    file: str = ""
    line: int | None = None
    step: int | None = None
    rank: int | None = None
    message: str
    fields: dict[str, Any] = field(default_factory=dict)
    source: str = "text"
    wall_time: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a detector found: an observation, its place in the run and the evidence for it.

    id: set by the scan (detectors leave it empty). because_of: id of the finding that this one is a consequence of.
    evidence: plain JSON types only.
    """

    id: str = ""
    code: str
    name: str
    severity: Severity
    tag: str | None = None
    rank: int | None = None
    step: int | None = None
    end_step: int | None = None
    wall_time: float | None = None
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    because_of: str | None = None

    @property
    def unit(self) -> str:
        """What `step` counts: "step", or "epoch" where the log places the metric by epochs (`evidence` says so)."""
        return "epoch" if self.evidence.get("axis") == "epoch" else "step"

    def _repr_html_(self) -> str:
        return as_html(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The diagnosis of a run: one root cause, the evidence for and against it, and what to do next.

    strength: how certain the cause is; "certain" only if the log proves it. findings: ids of its findings, the root
    first. disprove: observations that would refute the diagnosis.
    """

    name: str
    strength: Strength = "possible"
    summary: str
    findings: tuple[str, ...] = ()
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    disprove: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    last_good_step: int | None = None
    last_good_checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Saved weights of a run. `step` is taken from the name or the content.

    looked_into: the tensors were read. finite: None if not inspected, or if not known because a part cannot be read.
    nonfinite: names of the tensors that hold NaN or infinities. problem: why the checkpoint could not be read.
    """

    path: str
    step: int | None
    finite: bool | None = None
    nonfinite: tuple[str, ...] = ()
    problem: str | None = None
    looked_into: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of one kind that belong to a run, and how many numbers they contain."""

    kind: str
    files: tuple[str, ...]
    points: int


def json_value(value: Any) -> Any:
    """`value` as strict JSON: NaN and the infinities become the strings "nan", "inf" and "-inf".

    >>> json_value({"loss": math.nan, "steps": (1, 2)})
    {'loss': 'nan', 'steps': [1, 2]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(v) for v in value]
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if hasattr(value, "item"):  # a numpy scalar
        return json_value(value.item())
    return str(value)
