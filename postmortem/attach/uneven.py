"""Finds the logged step of each backward pass where steps have different numbers of them.

The generator of a GAN is trained in every second step, or a policy for as many epochs as a limit allows. One of the
logged losses is then still that of one backward pass in each step, and shows where the steps begin or end.
"""

from __future__ import annotations

import bisect
import itertools
import math
from typing import TYPE_CHECKING

from postmortem.attach.by_value import FREE, can_tell, different
from postmortem.replay.step.result import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postmortem.replay.roll.fidelity import LoggedLoss

    Same = Callable[[LoggedLoss, float, float], bool]

_STARTS = 3


def numbers_of(
    loss: LoggedLoss, series: Sequence[LoggedLoss], passes: Sequence[float], same: Same
) -> Iterator[tuple[tuple[int, ...], int]]:
    """(logged step of each pass, number of passes that a series holds in it), where each logged step in a row is met.

    passes: the losses at which the backward passes began. Those between are of the step before them, or of the one
    after: as more of them are in the log.
    """
    if not can_tell(loss):
        return
    logged = sorted(loss.values)
    for lead, value in enumerate(passes[:_STARTS]):
        for start in [s for s in logged if math.isfinite(value) and same(loss, loss.values[s], value)][:_STARTS]:
            met = list(_met(loss, logged[bisect.bisect_left(logged, start) :], passes, lead, same))
            if different(loss.values[step] for step, _ in met) < FREE or _left_out(met, passes):
                continue
            for before in (False, True)[lead > 0 :]:
                numbers = _numbered(met, len(passes), before=before)
                yield numbers, sum(_holds(series, n, v, same) for n, v in zip(numbers, passes, strict=True))


def _holds(series: Sequence[LoggedLoss], step: int, value: float, same: Same) -> bool:
    return math.isfinite(value) and any(step in s.values and same(s, s.values[step], value) for s in series)


def _met(
    loss: LoggedLoss, logged: Sequence[int], passes: Sequence[float], lead: int, same: Same
) -> Iterator[tuple[int, int]]:
    """(step, index of the pass) of the logged steps in their order, each the next one, up to the first NaN."""
    steps = iter(logged)
    step = next(steps, None)
    for i in range(lead, len(passes)):
        if step is None or not math.isfinite(passes[i]):
            return
        if same(loss, loss.values[step], passes[i]):
            yield step, i
            step = next(steps, None)


def _left_out(met: Sequence[tuple[int, int]], passes: Sequence[float]) -> bool:
    """Whether more finite passes follow the last that is met than lie between two others: the log goes on elsewhere."""
    after = sum(math.isfinite(value) for value in passes[met[-1][1] :])
    return after > max(_gaps(met)) + 1


def _gaps(met: Sequence[tuple[int, int]]) -> list[int]:
    return [b - a for (_, a), (_, b) in itertools.pairwise(met)]


def _numbered(met: Sequence[tuple[int, int]], n: int, *, before: bool) -> tuple[int, ...]:
    """before: the passes between are those before the one that is met."""
    indices = [i for _, i in met]
    steps = [step for step, _ in met]
    indices.append(indices[-1] + (1 if before else _next_gap(_gaps(met))))
    steps.append(steps[-1] + 1)
    find = bisect.bisect_left if before else lambda a, i: bisect.bisect_right(a, i) - 1
    return tuple(steps[min(max(find(indices, i), 0), len(steps) - 1)] for i in range(n))


def _next_gap(gaps: Sequence[int]) -> int:
    """The one that follows if the gaps repeat with a period; else a long one, as nothing shows where a step begins."""
    for period in range(1, len(gaps) // 2 + 1):
        if all(a == b for a, b in zip(gaps, gaps[period:], strict=False)):
            return gaps[-period]
    return max(gaps)


def results(numbers: Sequence[int], passes: Sequence[float], loss: LoggedLoss) -> list[StepResult]:
    """For each logged step the loss of that of its passes that comes nearest to the logged one."""
    within: dict[int, list[float]] = {}
    for number, value in zip(numbers, passes, strict=True):
        within.setdefault(number, []).append(value)
    made = []
    for step in within.keys() & loss.values.keys():
        logged = loss.values[step]
        made.append((step, min(within[step], key=lambda value, logged=logged: _apart(logged, value))))  # type: ignore[misc]
    return [StepResult(step=step, loss=v, losses={loss.tag: v}, last={loss.tag: v}) for step, v in sorted(made)]


def _apart(logged: float, value: float) -> float:
    if math.isfinite(logged) and math.isfinite(value):
        return abs(logged - value)
    return 0.0 if math.isfinite(logged) == math.isfinite(value) else math.inf
