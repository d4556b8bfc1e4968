"""What is known of the program and of the tick at fault in the process that examines it, and how it is asked."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from postmortem.attach.boundaries.current import listener
from postmortem.attach.standby.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.attach.standby.journal import Before
    from postmortem.attach.standby.loaders import Record
    from postmortem.attach.standby.plan import Entered, Key, Plan, Reply


class Scene:
    """tick: the one at fault. kind: of the fault, as `flags` tells it. since: batches that loaders gave after the fork.
    failing_pass: number of the backward pass at which the tick fails, None where it is not the loss that fails.
    entered: what enters the tick, known after a first look. on_disk: what the program has changed on disk since the
    fork, see `journal`.
    """

    def __init__(self, record: Record, tick: int, kind: str, since: Mapping[Key, Any]) -> None:
        self.record, self.tick, self.kind, self.since = record, tick, kind, dict(since)
        self.program = Program.found(listener.optimizers | listener.stepped, sys._getframe(1))
        self.failing_pass: int | None = None
        self.entered: Entered | None = None
        self.on_disk: Mapping[str, Before] = {}
        self.batches: dict[Key, Any] = {}
        self.batch: Any = None
        self.micro_batches = 1

    def known(self) -> dict[Key, Any]:
        """The batches that loaders gave, as far as they are kept."""
        return {**dict(self.record.recent), **self.since}

    def enters(self, entered: Entered) -> None:
        """Sets what enters the tick, as the first look found it."""
        known = self.known()
        entered.batches = [(passes, key) for passes, key in entered.batches if key in known]
        self.entered = entered
        self.batches = {key: known[key] for _, key in entered.batches}
        if entered.batches:
            self.batch = self.structured(self.batches)
            self.micro_batches = len(self._passes())
            return
        parts: dict[int, list[Any]] = {}
        for entry in entered.entries:
            parts.setdefault(entry.passes, []).append(entry.values)
        alike = len({tuple(t.shape for t in part) for part in parts.values()}) == 1
        self.micro_batches = len(parts) if alike else 1
        if alike and len(parts) > 1:
            self.batch = [tuple(part) for part in parts.values()]
        else:
            self.batch = tuple(e.values for e in entered.entries) or None

    def _passes(self) -> dict[int, list[Key]]:
        """Number of backward passes before -> the batches that are read then."""
        assert self.entered is not None
        found: dict[int, list[Key]] = {}
        for passes, key in self.entered.batches:
            found.setdefault(passes, []).append(key)
        return found

    def structured(self, batches: Mapping[Key, Any]) -> Any:
        """The batch of the tick: the batches that enter it, as a list of micro-batches where there are several."""
        parts = [[batches[key] for key in keys] for keys in self._passes().values()]
        whole = [part[0] if len(part) == 1 else tuple(part) for part in parts]
        return whole[0] if len(whole) == 1 else whole

    def by_key(self, batch: Any) -> dict[Key, Any]:
        """The batches again, from what `structured` made."""
        groups = list(self._passes().values())
        parts = [batch] if len(groups) == 1 else list(batch)
        found: dict[Key, Any] = {}
        for keys, part in zip(groups, parts, strict=True):
            found.update(zip(keys, [part] if len(keys) == 1 else part, strict=True))
        return found


class Repeatable(Scene, ABC):
    """A scene where attempts at the step can be made.

    where: how the step is repeated, in words. device: the type of the one that it runs on. asked: how many attempts
    were made.
    """

    where: str
    device: str
    asked: int

    @abstractmethod
    def ask(self, plan: Plan) -> Reply:
        """One attempt."""
