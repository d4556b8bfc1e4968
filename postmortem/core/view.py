"""What detectors see of a run: one series per metric, without overwritten points.

Overlapping steps of a restart are reduced to the history that survived, and the same number from two
sources counts once. The frame keeps everything.
"""

from __future__ import annotations

import copy
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from postmortem.core.merge import merged, overwritten, surviving
from postmortem.core.roles import is_total

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from postmortem.core.model import Checkpoint, Event
    from postmortem.core.run import Restart, Run
    from postmortem.core.series import Series


@dataclass
class View:
    """A run as detectors see it. `series` are in order of first appearance of their tag.

    `checkpoints` are the run's, with what is known of them after inspection.
    """

    run: Run
    events: list[Event] = field(default_factory=list)
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What several detectors need of the same series, worked out once."""
    checkpoints: Sequence[Checkpoint] = ()

    def __post_init__(self) -> None:
        self.events = self.events or self.run.event_list
        self.checkpoints = self.checkpoints or self.run.checkpoints

    def with_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> View:
        """The same view of the same numbers, with more known of the checkpoints."""
        view = copy.copy(self)  # keeps the series that were worked out
        view.checkpoints = checkpoints
        return view

    @cached_property
    def series(self) -> list[Series]:
        """One series per metric and rank, without overwritten points and without the copies of a second source."""
        found = []
        for stream in self.run.streams:
            found += surviving(stream, self.run.roles)
            stream.points.pack()
        return merged(found)

    @cached_property
    def overwritten(self) -> list[Series]:
        """The points that a restart logged again: what earlier attempts logged, one series per metric and rank."""
        return [s for stream in self.run.streams if stream.restarts for s in overwritten(stream, self.run.roles)]

    def of(self, *roles: str) -> list[Series]:
        """All series of these roles, by role in the order asked for, see `_by_weight` for the order within a role."""
        if len(roles) == 1:
            return [*self._of_role.get(roles[0], ())]
        return [s for role in roles for s in self._of_role.get(role, ())]

    @cached_property
    def _of_role(self) -> dict[str | None, list[Series]]:
        found = defaultdict(list)
        for series in self.series:
            found[series.role].append(series)
        return {role: _by_weight(of_role) for role, of_role in found.items()}

    def main(self, *roles: str) -> Series | None:
        """The main series of these roles: the first of `of`, or None if none of the roles is logged."""
        return next(iter(self.of(*roles)), None)

    def settings(self, *names: str) -> Iterator[tuple[str, float]]:
        """The finite numbers of the configuration under these names, in the order of `names`, outer keys first.

        A name is the last part of a key, in small letters. Yields (the whole key with dots between its levels, the
        number); a text that reads as a number counts.
        """
        if not self.run.config:
            return
        by_name: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for key, value in _leaves(self.run.config):
            by_name[re.split(r"[./]", key)[-1].lower()].append((key, value))
        for key, value in (entry for name in names for entry in by_name.get(name, ())):
            try:
                number = math.nan if isinstance(value, bool) else float(value)
            except (TypeError, ValueError, OverflowError):  # an integer of hundreds of digits is beyond any float
                continue
            if math.isfinite(number):
                yield key, number

    @cached_property
    def restarts(self) -> list[Restart]:
        """The places where the steps of any stream go back."""
        return [r for stream in self.run.streams for r in stream.restarts]

    @cached_property
    def last_step(self) -> int | None:
        """The largest step that any series of a known role reached; of any series where there is none."""
        return max((int(s.step[-1]) for s in self._counting if len(s)), default=None)

    @cached_property
    def first_step(self) -> int | None:
        """The smallest step of any series of a known role; of any series where there is none."""
        return min((int(s.step[0]) for s in self._counting if len(s)), default=None)

    @property
    def _counting(self) -> list[Series]:
        """The series that show from which step to which the run went: where some are at steps, not those at epochs."""
        known = [s for s in self.series if s.role not in (None, "epoch")] or self.series
        at_steps = [s for s in known if s.epoch is None]
        if at_steps and len(at_steps) < len(known):  # some evaluations are no course of a run that counts its steps
            every = [s for s in self.series if s.epoch is None]
            few = 10 * max(map(len, at_steps)) < max(map(len, every))
            return every if few else at_steps
        return at_steps or known


def _by_weight(found: list[Series]) -> list[Series]:
    """Longest first; but the whole of a loss before its parts, unless it is logged at less than half of their steps."""
    enough = max(map(len, found), default=0) / 2
    return sorted(found, key=lambda s: (not (is_total(s.tag) and len(s) >= enough), -len(s)))


def _leaves(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """(dotted key, value) of a nested configuration, level by level; W&B writes a value as ``{value: …}``."""
    leaves: list[tuple[str, Any]] = []
    level = [(str(key), value) for key, value in config.items()]
    while level:
        below = []
        for key, value in level:
            if isinstance(value, dict) and "value" not in value:
                below += [(f"{key}.{inner}", nested) for inner, nested in value.items()]
            else:
                leaves.append((key, value["value"] if isinstance(value, dict) else value))
        level = below
    return leaves
