"""The launcher's side of `measured`: the steps of one run of the command, by the steps of the log."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postmortem.replay.culprit.calm import apart_from, calm_limit

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.attach.answers import Process
    from postmortem.attach.steps import Mapping
    from postmortem.replay.roll.sought import Sought

_LEVEL = 25  # steps that make the level
_PART = 0.3  # of the growth may be left where it counts as calm


@dataclass
class Seen:
    """One run. losses, gradients, norms, rates, gains: by step of the log; `gradients` are the norms before the program
    clips them. places: module -> (file, line) of the user's code that calls it. groups: names of the parameters of each
    group of the optimizer. ticks: step -> its first optimizer step. used: the change that was tried had an effect.
    """

    losses: dict[int, float] = field(default_factory=dict)
    gradients: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    gains: dict[str, dict[int, float]] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    groups: list[list[str]] = field(default_factory=list)
    ticks: dict[int, int] = field(default_factory=dict)
    used: bool = False

    def values(self, sought: Sought) -> dict[int, float]:
        """Those that the finding is about."""
        return self.gradients if sought.gradient else self.losses


def seen(process: Process, mapping: Mapping, folder: Path) -> Seen:
    """What a run shows: its losses, and what was measured, of which nothing need be there."""
    found, steps = Seen(), dict[int, int]()
    for step, each in mapping.numbered(process.passes):
        found.losses[step] = each.loss
        found.ticks.setdefault(step, each.tick)
        steps[each.tick] = step
    path = folder / f"{process.pid}.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["tick"] not in steps:  # a tick without a backward pass
            continue
        step = steps[row["tick"]]
        found.gradients[step], found.norms[step], found.rates[step] = row["unclipped"], row["norm"], row["rates"]
        for name, gain in row["gains"].items():
            found.gains.setdefault(name, {})[step] = gain
        if row["groups"]:  # of a second optimizer: which one has these rates is not told
            found.groups = [[""]] if found.groups else row["groups"]
        found.places |= {name: tuple(place) for name, place in row["places"].items()}
    return found


@dataclass(frozen=True)
class Course:
    """The growth. first: its first step. level, limit: the median of the values before, and the largest value that
    counts as calm. highest: the largest of these before. until: the step up to which a trial has to stay calm."""

    sought: Sought
    first: int
    level: float
    limit: float
    highest: float
    until: int

    @property
    def what(self) -> str:
        """What grows."""
        return "gradient norm" if self.sought.gradient else "loss"

    def peak(self, run: Seen) -> float:
        """The largest value of a run from the first step of the growth on; inf where one is missing or not finite."""
        values = run.values(self.sought)
        those = [values.get(step, math.inf) for step in range(self.first, self.until + 1)]
        return max((v if math.isfinite(v) else math.inf for v in those), default=math.inf)

    def calm(self, run: Seen) -> bool:
        """Whether the run stays calm, and does not only grow later."""
        if not self.peak(run) <= self.limit:
            return False
        values = run.values(self.sought)
        last = [values[step] for step in range(self.first, self.until + 1)][-max(1, (self.until - self.first) // 3) :]
        return self.sought.kind == "spike" or statistics.median(last) <= self.highest


_BEYOND = 20  # steps after the first in which a trial of a growth has to stay calm
_FAR = 100  # steps after that of the finding, which may be where the growth begins, in which a growth is looked for
_LASTS = 5  # steps whose median has left the course as well


def course_of(run: Seen, sought: Sought) -> Course | None:
    """The growth or jump in the values of a run; None where it does not show the finding."""
    values = run.values(sought)
    begin, at = min(values, default=0), sought.step
    if at - begin < 1 or any(step not in values for step in range(begin, at + 1)):
        return None
    grows, index = sought.kind == "growth", at - begin
    end = at
    while grows and end < at + _FAR and end + 1 in values:
        end += 1
    series = [values[step] for step in range(begin, end + 1)]
    start = max(1, index - sought.interval + 1)
    start = min(start, max(3, index // 2)) if grows else start
    for i in range(start, len(series)):
        before = [x for x in series[: start if grows else i][-_LEVEL:] if math.isfinite(x)]
        if not before:
            return None
        before = before if grows or not math.isfinite(series[i]) else apart_from(before, series[i])
        part = max(before) + _PART * max(0.0, max(series[i:], key=_size) - max(before))
        limit = min(part, max(calm_limit(before), 3 * max(before)))
        lasting = statistics.median(map(_size, series[i : i + _LASTS])) if grows else series[i]
        if not series[i] <= limit and not lasting <= limit:
            first = begin + i
            until = min(max(run.losses), first + _BEYOND) if grows else first
            return Course(sought, first, statistics.median(before), limit, max(before), until)
    return None


def _size(value: float) -> float:
    return value if math.isfinite(value) else math.inf
