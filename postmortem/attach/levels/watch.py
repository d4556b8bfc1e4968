"""What a level measures in each tick, and the row of the history made from it."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.boundaries.current import listener
from postmortem.attach.levels.control import Control
from postmortem.attach.levels.norms import LayerNames, Norms
from postmortem.attach.levels.operators import Operators, may_be_entered
from postmortem.attach.levels.rows import Rows
from postmortem.attach.levels.timing import Marks
from postmortem.attach.measure.budget import Budget, Laps, Prepaid
from postmortem.attach.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.attach.flags import Tick
    from postmortem.attach.levels.norms import Sample
    from postmortem.attach.measure.later import Later
    from postmortem.checkpoints.histories import Level

SHARES = {"rows": 0.003, "norms": 0.035, "operators": 0.13}
"""Of the time of the ticks. With the flags' own share `advanced` stays below 5 % and `extreme` below 20 %."""
ALLOWANCES = {"rows": 0.1, "norms": 1.0, "operators": 1.0}
"""CPU seconds in addition, in all: names are looked up once, and a short training has a history as well."""
_MEMORY = 1.0  # seconds between two looks at the memory
_GROUPS = 4  # parameter groups whose learning rate is kept


class Levels(Observer):
    """Listens beside the flags. later: their parcels, so that rows come in the order of ticks.

    failed: called once with what is wrong if no history can be kept; the program goes on without it. scale: of the
    shares, which are then kept from the first tick on; None: as they are, and what is allowed once in addition.
    """

    def __init__(
        self,
        level: Level,
        folder: Path,
        rank: Callable[[], int | None],
        later: Later,
        failed: Callable[[str], None],
        scale: float | None = None,
    ) -> None:
        self._scale = scale
        self.burden = 0.0
        """CPU seconds that ticks took longer because each operator was seen."""
        self._control = Control(level, rank)
        self._budgets: dict[str, Budget] = {}
        self._expected = dict.fromkeys(SHARES, math.inf)
        self._norms: Norms | None = None
        self._extreme = False
        self._set(level)
        self._rows, self._names, self._later, self._failed = Rows(folder, rank), LayerNames(), later, failed
        self._off = False
        self._laps = Laps()
        self._device: torch.device | None = None
        self._marks: Marks | None = None
        self._stepped: Any = None
        self._sampling: Any = None
        self._sample: Sample | None = None
        self._operators: Operators | None = None
        self._armed = False
        self._left: list[Operators] = []
        self._memory: tuple[float, dict[str, float]] = (-math.inf, {})
        self._open: dict[int, _Row] = {}
        self._order: list[torch.optim.Optimizer] = []

    def _set(self, level: Level) -> None:
        self._norms = (self._norms or Norms()) if level != "basic" else None
        self._extreme = level == "extreme"
        # anew: what was not measured until now is not made up for
        if self._scale is None:
            self._budgets = {name: Budget(share, allowance=ALLOWANCES[name]) for name, share in SHARES.items()}
        else:
            self._budgets = {name: Prepaid(share * self._scale, self._expected[name]) for name, share in SHARES.items()}

    def expect(self, expected: dict[str, float]) -> None:
        """CPU seconds of each kind of measurement at a time, before the first one within a budget."""
        self._expected.update(expected)
        for name, budget in self._budgets.items():
            if isinstance(budget, Prepaid):
                budget.expected = self._expected[name]

    def prepare(self) -> None:
        """Looks up names now that would be looked up in a tick."""
        if self._norms is not None:
            self._names.look_up()

    def earn(self, seconds: float) -> None:
        """Ticks in a rest took so long."""
        for budget in self._budgets.values():
            budget.earn(seconds)

    def steer(self) -> None:
        """Takes the level that was asked for."""
        asked = self._control.asked(self._rows.folder)
        if asked is not None:
            self._set(asked)

    def rest(self) -> None:
        """Nothing is told until `wake`; the tick that ended last was the last one with a row."""
        self._disarm()
        self._later.drain()
        self._marks = self._sampling = self._sample = None

    def wake(self) -> None:
        """The next tick is measured, where that is due."""
        self._laps.restart()
        listener.waited = 0.0
        self._marks = Marks(self._device)

    # ---- what happens in a tick

    def loss(self, loss: torch.Tensor) -> None:
        """The forward pass has ended."""
        self._device = loss.device
        if self._marks is not None:
            self._marks.ended("forward")

    def backward_done(self) -> None:
        """The backward pass has ended."""
        if self._marks is not None:
            self._marks.ended("backward")

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The norms of the gradients, where they are due."""
        if self._off:
            return
        budget = self._budgets["norms"]
        if self._norms is not None and budget.due() and self._marks is not None:
            with budget.spend():
                self._norms.before(optimizer)
                self._sampling = optimizer
        if self._marks is not None:
            self._marks.ended("forward" if not listener.backwards else "optimizer")

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """The norms of the update."""
        if self._operators is not None:
            self._operators.listens = False
        self._stepped = optimizer
        if self._marks is not None:
            self._marks.ended("optimizer")
        if self._sampling is optimizer and self._norms is not None:
            with self._budgets["norms"].spend():
                self._sample = self._norms.after()
        self._sampling = None

    def tick(self, number: int) -> None:
        """A tick has ended: its row is begun, and what the next one is to measure is decided."""
        optimizer = self._stepped
        armed = self._operators
        self._armed = armed is not None
        took, burden = self._laps.lap(burdened=armed is not None)
        for budget in self._budgets.values():
            budget.earn(took)
        self._budgets["operators"].spent += burden
        self.burden += burden
        self._disarm()
        if self._off:
            return
        self.steer()
        rows, waited, marks = self._budgets["rows"], listener.waited, self._marks
        listener.waited = 0.0
        self._marks = None
        sample, self._sample = self._sample, None
        largest = {}
        if armed is not None:
            with self._budgets["operators"].spend():
                largest = armed.largest()
        with rows.spend():
            row = self._begin(number, optimizer, marks, waited) if marks is not None else None
            if rows.due() or (self._norms is not None and self._budgets["norms"].due()):
                self._marks = Marks(self._device)
        if row is not None and (sample is not None or largest):
            self._send(row, sample, largest)

    def arm(self) -> None:
        """What the next tick is to measure in each operator is decided: last, so that nothing of ours is seen."""
        due = self._budgets["operators"].due() and self._laps.known and not self._armed
        if self._extreme and self._marks is not None and due and may_be_entered():
            self._operators = Operators()
            self._operators.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """For a process that the program forked: what it computes is not measured here."""
        self._disarm()

    def _disarm(self) -> None:
        if self._operators is not None:
            self._left.append(self._operators)
            self._operators = None
        self._left = [mode for mode in self._left if not mode.leave()]

    # ---- its row

    def _begin(self, number: int, optimizer: Any, marks: Marks, waited: float) -> _Row:
        row = self._open[number] = _Row(number, marks, waited)
        row.suffix = self._suffix(optimizer)
        row.fields.update(self._rates(optimizer, row.suffix))
        row.fields.update(self._of_memory())
        return row

    def _send(self, row: _Row, sample: Sample | None, largest: dict[str, torch.Tensor]) -> None:
        row.parts += 1
        tensors = [*sample.gradients, *sample.updates] if sample is not None else []
        budget = self._budgets["norms" if sample is not None else "operators"]

        def arrived(values: list[float]) -> None:
            if sample is not None:
                row.fields.update(sample.columns(values[: len(tensors)], self._names, row.suffix))
            row.fields.update(zip(largest, values[len(tensors) :], strict=True))
            self._complete(row)

        with budget.spend():
            self._later.send([*tensors, *largest.values()], arrived)

    def _suffix(self, optimizer: Any) -> str:
        """Columns of several optimizers are told apart by the order of their first steps."""
        if len(listener.optimizers) < 2:
            return ""
        if not any(o is optimizer for o in self._order):
            self._order.append(optimizer)
        return f"/optimizer{next(i for i, o in enumerate(self._order) if o is optimizer)}"

    @staticmethod
    def _rates(optimizer: Any, suffix: str) -> dict[str, float]:
        groups = getattr(optimizer, "param_groups", ())[:_GROUPS]
        rates = {f"lr{suffix}/{i}" if i else f"lr{suffix}": group.get("lr") for i, group in enumerate(groups)}
        # a tensor on a device would have to be waited for
        return {k: float(v) for k, v in rates.items() if isinstance(v, (int, float)) or _on_cpu(v)}

    def _of_memory(self) -> dict[str, float]:
        looked, found = self._memory
        if time.monotonic() - looked >= _MEMORY:
            found = {}
            with suppress(OSError, ValueError), open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
                found["memory_mb"] = round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
            if self._device is not None and self._device.type == "cuda":
                found["gpu_memory_mb"] = round(torch.cuda.memory_allocated(self._device) / 1e6, 1)
            self._memory = time.monotonic(), found
        return found

    def told(self, tick: Tick) -> None:
        """The losses of a tick are known."""
        row = self._open.get(tick.number)
        if row is None:
            return
        with self._budgets["rows"].spend():
            if tick.losses:
                row.fields["loss" + row.suffix] = (
                    math.fsum(tick.losses) / len(tick.losses) if _finite(tick) else math.nan
                )
            if tick.skipped:
                row.fields["skipped"] = 1
            self._complete(row)

    def _complete(self, row: _Row) -> None:
        row.parts -= 1
        if row.parts:
            return
        del self._open[row.number]
        try:
            self._rows.add(row.as_json())
        except OSError as error:
            self._stop(f"no history is kept: {error.filename or 'its folder'}: {error.strerror or error}")

    def _stop(self, why: str) -> None:
        self._off = True
        self._marks, self._norms, self._extreme = None, None, False
        self._failed(why)

    def interrupt(self, tick: Tick) -> None:
        """A fault: what is there is written, with the tick under way. `wake` goes on after it, `close` does not."""
        self._disarm()
        self._open.pop(tick.number, None)
        self._marks = self._sampling = self._sample = None
        if not self._off:
            self._write(tick)

    def _write(self, tick: Tick | None) -> None:
        try:
            if tick is not None and tick.losses:
                self._rows.add({"tick": tick.number, "time": time.time(), "loss": tick.losses[-1]})
            self._rows.flush()
        except OSError as error:
            self._stop(f"no history is kept: {error.filename or 'its folder'}: {error.strerror or error}")

    def close(self, tick: Tick | None = None) -> None:
        """Nothing more is measured, and what is there is written. tick: the one under way, at a fault."""
        self._disarm()
        if not self._off:
            self._write(tick)
            self._control.ended(self._rows.folder)
        self._off = True


class _Row:
    """One tick's. parts: what is not there yet, of losses, and norms or operators."""

    def __init__(self, number: int, marks: Marks, waited: float) -> None:
        self.number, self.marks, self.waited = number, marks, waited
        self.seconds = time.perf_counter() - marks.began
        self.time = time.time()
        self.suffix = ""
        self.fields: dict[str, float] = {}
        self.parts = 1

    def as_json(self) -> dict[str, Any]:
        """With the optimizer's steps of this process as `tick`; they are no logged steps."""
        seconds = {"step_time": self.seconds, **({"data_time": self.waited} if self.waited else {})}
        seconds.update(self.marks.columns(self.waited))
        rounded = {name: float(f"{value:.8g}") for name, value in {**seconds, **self.fields}.items()}
        return {"tick": self.number, "time": round(self.time, 3), **rounded}


def _finite(tick: Tick) -> bool:
    return all(map(math.isfinite, tick.losses))


def _on_cpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1
