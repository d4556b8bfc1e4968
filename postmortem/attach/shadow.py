"""The log that a rerun wrote to the overlay: read by our own readers and compared with the log of the run.

What a program logs may be no loss of one of its backward passes: a running mean, a loss in other units, a mean over
ranks. It logs the rerun in the same way, so that the same values mean that the rerun follows the run.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.attach.steps import logged_losses
from postmortem.core.culprit import Fidelity
from postmortem.runs.assemble import read_runs
from postmortem.runs.group import discover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from postmortem.core.run import Run
    from postmortem.core.view import View

_RUNS = 8
"""Folders with logs that are read, at most."""
_CLOSE = 1e-5
_FEWEST = 2
"""Different finite losses that must be met: a single one may be met by chance."""

Rows = dict[tuple[str, str, int], list[tuple[int, float]]]
"""(source, tag, rank) -> (step, value) of its rows, in their order."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Losses that the rerun logged at a step that the log of the run holds. values: finite ones that are equal."""

    compared: int
    exact: int
    values: frozenset[float]
    tags: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the rerun follows the run, as far as both logged."""
        return self.exact == self.compared and len(self.values) >= _FEWEST

    def note(self) -> str:
        """In words."""
        which = f"{self.exact} of {self.compared} values of {', '.join(self.tags)}"
        return f"{which} that the rerun logged itself are those of the log"


def followed(view: View | None, paths: Sequence[Path], rank: int | None) -> Compared | None:
    """The comparison that meets most; None where the rerun logged no loss at a step of the log.

    paths: where the writes of the rerun went: folders and files, which need not be there.
    """
    tags = dict.fromkeys(loss.tag for loss in logged_losses(view, rank))
    if view is None or not tags:
        return None
    told = rows(view.run)
    found = [c for run in _logged(paths) if (c := _compared(told, rows(run), list(tags))) is not None]
    return max(found, key=lambda c: (c.same, c.exact), default=None)


def fidelity(compared: Compared) -> Fidelity:
    """That of a rerun that follows the run by its own log."""
    return Fidelity(ok=True, compared=compared.compared, exact=compared.exact, note=compared.note())


def _logged(paths: Iterable[Path]) -> Iterator[Run]:
    there = [path for path in paths if path.exists()]
    if not there:
        return
    found, _ = discover(there)
    for files in itertools.islice(found, _RUNS):
        yield from read_runs(files, roots=there)


def rows(run: Run) -> Rows:
    """What a run logged."""
    frame = run.frame
    found: Rows = defaultdict(list)
    columns = (frame["source"], frame["tag"], frame["rank"], frame["step"], frame["value"])
    for source, tag, rank, step, value in zip(*(column.tolist() for column in columns), strict=True):
        found[source, tag, rank].append((step, value))
    return found


def _compared(told: Rows, made: Rows, tags: Sequence[str]) -> Compared | None:
    logged: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (_, tag, rank), pairs in told.items():
        for step, value in pairs:
            logged[tag, rank][step].append(value)
    met_steps = [
        (value, logged[tag, rank][step], tag)
        for (source, tag, rank), own in made.items()
        if tag in tags
        for step, value in _new(told.get((source, tag, rank), []), own)
        if step in logged[tag, rank]
    ]
    if not met_steps:
        return None
    same = [value for value, values, _ in met_steps if any(_same(value, other) for other in values)]
    finite = frozenset(value for value in same if math.isfinite(value))
    return Compared(len(met_steps), len(same), finite, tuple(dict.fromkeys(tag for _, _, tag in met_steps)))


def _new(before: list[tuple[int, float]], after: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The rows of the rerun: in a log that it appended to, they come after those that were there."""
    n = len(before)
    kept = n <= len(after) and all(
        s == t and (v == w or (math.isnan(v) and math.isnan(w)))
        for (s, v), (t, w) in zip(before, after[:n], strict=True)
    )
    return after[n:] if kept else after


def _same(value: float, other: float) -> bool:
    return (math.isnan(value) and math.isnan(other)) or math.isclose(value, other, rel_tol=_CLOSE)
