"""One text log into which several programs wrote at the same time, as two jobs with ``>> train.log &`` do.

Their lines alternate, and each program goes on at the step after its own last one. A restart does not look like that:
it goes on from one place. Ranks of one job are hardly a step apart, and are left alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.roles import role_of
from postmortem.core.stats import median

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.model import Event
    from postmortem.core.points import Points
    from postmortem.core.reading import Reading

_MOST = 4
"""Programs that are told apart."""
_TURNS = 10
"""Times that the log turns from one program to another, and back, for each of them."""
_STEPS_APART = 5
"""Logged steps between two programs: ranks of one job are nearer."""
_REGULAR = 0.9
"""Fraction of a program's points that come at its usual distance."""
_ALIKE = 2
"""How much more often one of the programs may log than another: an evaluation in the same file is rarer."""
_ROLES = ("loss", "lr", "grad_norm")


def told_apart(reading: Reading) -> list[Reading]:
    """The reading of each program that wrote into the log, in the order of their first points; mostly just `reading`.

    Their events go to the program that logged nothing after them, else to all.
    """
    points = reading.points
    steps = _main_steps(points)
    if steps is None or reading.step_axis in ("row", "epoch"):
        return [reading]
    writer = _writers(steps[1])
    if writer is None:
        return [reading]
    count = int(writer.max()) + 1
    of_point = _of_points(points, *steps, writer, count)
    lasts = [int(steps[1][writer == k][-1]) for k in range(count)]
    note = f"{count} programs wrote into this file at the same time: their rows are told apart by their steps"
    return [
        replace(
            reading,
            points=points.chosen(of_point == k),
            events=[e for e in reading.events if _may_be_of(e, k, lasts)],
            notes=[*reading.notes, note],
        )
        for k in range(count)
    ]


def _main_steps(points: Points) -> tuple[NDArray[np.intp], NDArray[np.int64]] | None:
    """The places and steps of the longest series with a telling role, of one rank; None where it is short."""
    tags = [code for code, tag in enumerate(points.tags) if role_of(tag) in _ROLES]
    if not tags or len(points) < 2 * _TURNS:
        return None
    counts = np.bincount(points.code, minlength=len(points.tags))
    code = max(tags, key=lambda c: counts[c])
    at = np.flatnonzero(points.code == code)
    if len(at) < 2 * _TURNS or len(distinct(points.take("rank", at))) > 1:
        return None
    step = points.take("step", at)
    return (at, step) if (step[1:] < step[:-1]).sum() >= _TURNS else None


def _writers(step: NDArray[np.int64]) -> NDArray[np.int8] | None:
    """Which program logged each point, int8[n]; None where one program explains the steps as well."""
    last: list[int] = []
    writer = np.zeros(len(step), np.int8)
    for i, now in enumerate(step.tolist()):
        below = [k for k, before in enumerate(last) if before < now]
        if not below:
            if len(last) == _MOST:
                return None
            last.append(now)
            writer[i] = len(last) - 1
            continue
        chosen = max(below, key=last.__getitem__)
        last[chosen] = now
        writer[i] = chosen
    return writer if len(last) > 1 and _are_programs(step, writer, len(last)) else None


def _are_programs(step: NDArray[np.int64], writer: NDArray[np.int8], count: int) -> bool:
    """Whether each logs at its own regular distance, alternates with the others, and is some steps away from them."""
    turned = np.flatnonzero(writer[1:] != writer[:-1]) + 1
    strides = []
    for k in range(count):
        apart = np.diff(step[writer == k])
        if (writer[turned] == k).sum() < _TURNS or not len(apart):
            return False
        stride = median(apart)
        if (apart == stride).mean() < _REGULAR:
            return False
        strides.append(stride)
    if max(strides) > _ALIKE * min(strides):
        return False
    gaps = np.abs(step[turned] - step[turned - 1])
    return bool(median(gaps) > _STEPS_APART * max(strides))


def _of_points(
    points: Points, at: NDArray[np.intp], step: NDArray[np.int64], writer: NDArray[np.int8], count: int
) -> NDArray[np.int8]:
    """The program of every point: the one whose last main point before it, or next after it, is at the nearest step."""
    n = len(points)
    nearest = np.full(n, np.inf)
    found = np.zeros(n, np.int8)
    steps = points.step
    for k in range(count):
        own_at, own_step = at[writer == k], step[writer == k]
        place = np.searchsorted(own_at, np.arange(n), side="right")
        for side in (np.clip(place - 1, 0, len(own_at) - 1), np.clip(place, 0, len(own_at) - 1)):
            gap = np.abs(steps - own_step[side])
            better = gap < nearest
            nearest[better], found[better] = gap[better], k
    return found


def _may_be_of(event: Event, k: int, lasts: list[int]) -> bool:
    ended = [i for i, last in enumerate(lasts) if event.step == last]
    return k in ended if event.severity == "error" and len(ended) == 1 else True
