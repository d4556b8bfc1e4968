"""The recorded facts of one process, in order, with helpers for frequent queries."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from postmortem.silent import facts
from postmortem.silent.facts import (
    Backward,
    Changed,
    Fact,
    Forward,
    Gap,
    Gradients,
    ModuleRan,
    ModuleSeen,
    OptimizerMade,
    Over,
    ParameterSeen,
    Stepped,
    WorkerDrew,
)
from postmortem.silent.weight_facts import Rates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")
_ALTERNATE = 16
"""Steps of other optimizers that may lie between two of one that is still in use."""


@dataclass
class Look:
    """The facts of one process."""

    facts: list[Fact]
    rank: int | None = None
    pid: int = 0
    _by_kind: dict[type, list[Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_kind = defaultdict(list)
        for fact in self.facts:
            self._by_kind[type(fact)].append(fact)

    def of(self, kind: type[T]) -> list[T]:
        """All facts of a kind, in their order."""
        return self._by_kind[kind]

    @cached_property
    def steps(self) -> int:
        """Optimizer steps that were made."""
        return max((over.steps for over in self.of(Over)), default=len(self.of(Stepped)))

    @cached_property
    def ended(self) -> bool:
        """The program was observed to its end."""
        return any(over.ended for over in self.of(Over))

    # ---- parameters

    @cached_property
    def parameters(self) -> dict[int, ParameterSeen]:
        """By number."""
        return {p.parameter: p for p in self.of(ParameterSeen)}

    @cached_property
    def modules(self) -> dict[int, ModuleSeen]:
        """By number."""
        return {m.module: m for m in self.of(ModuleSeen)}

    @cached_property
    def owners(self) -> dict[int, ModuleSeen]:
        """Parameter -> the module that ran and has it."""
        return {p: m for m in reversed(self.of(ModuleSeen)) for p in m.parameters.values()}

    @cached_property
    def reached(self) -> set[int]:
        """Parameters to which the graph of a backward pass led, or that had a gradient in an optimizer's step."""
        found = {p for backward in self.of(Backward) for p in backward.reached or ()}
        return found | {int(p) for g in self.of(Gradients) for p, norm in g.norms.items() if norm is not None}

    @cached_property
    def optimizers(self) -> dict[int, OptimizerMade]:
        """By number; where groups were added, as it was last."""
        return {o.optimizer: o for o in self.of(OptimizerMade)}

    def held_by(self, optimizer: int) -> list[int]:
        """Its parameters."""
        return [p for group in self.optimizers[optimizer].groups for p in group["parameters"]]

    @cached_property
    def held(self) -> set[int]:
        """Parameters that any optimizer has or had."""
        return {p for o in self.of(OptimizerMade) for group in o.groups for p in group["parameters"]}

    @cached_property
    def moved(self) -> dict[int, float]:
        """Parameter -> the farthest that it was from its start."""
        farthest: dict[int, float] = {}
        for changed in self.of(Changed):
            for key, distance in changed.distance.items():
                farthest[int(key)] = max(farthest.get(int(key), 0.0), distance)
        return farthest

    def untrained(self, parameter: int) -> bool:
        """A backward pass reaches it, no optimizer ever had it, and it did not change."""
        seen = self.parameters[parameter]
        if seen.leaf or parameter in self.held or parameter not in self.reached:
            return False
        return self.moved.get(parameter) == 0.0

    def registered(self, parameter: int) -> bool:
        """Whether the model knows the module that has it; also where it is used without a module."""
        owner = self.owners.get(parameter)
        return owner is None or owner.registered

    @cached_property
    def frozen(self) -> set[int]:
        """Parameters of optimizers that required no gradient at some step."""
        return {p for g in self.of(Gradients) for p in g.frozen}

    def name(self, parameter: int) -> str:
        """What to call it."""
        module = self.owners.get(parameter)
        if module is None:
            return f"a parameter of shape {list(self.parameters[parameter].shape)}"
        own = next(n for n, p in module.parameters.items() if p == parameter)
        if not module.name and len({m.root for m in self.modules.values()}) > 1:
            return f"{module.type}.{own}"  # the name alone would be that of several
        return f"{module.name}.{own}" if module.name else own

    # ---- steps

    @cached_property
    def stepped(self) -> dict[int, list[Stepped]]:
        """Optimizer -> its steps that were looked at."""
        found: dict[int, list[Stepped]] = defaultdict(list)
        for step in self.of(Stepped):
            found[step.optimizer].append(step)
        return found

    @cached_property
    def busiest(self) -> int:
        """The optimizer with the most steps."""
        return max(self.optimizers, key=lambda o: len(self.stepped.get(o, ())))

    def span(self, optimizer: int) -> tuple[int, int]:
        """Between which steps of the program an optimizer was in use: programs may train one model after another.

        The last step that is known of one that was used no longer, when others were.
        """
        mine = [s.step for s in self.stepped.get(optimizer, ())]
        if not mine:
            return 0, 0
        others = max((s[-1].step for o, s in self.stepped.items() if o != optimizer), default=0)
        return mine[0], self.steps if mine[-1] + _ALTERNATE >= others else mine[-1] + 1

    def rates(self, optimizer: int) -> list[tuple[int, float]]:
        """(step, highest learning rate of its groups) where the rate was not that of the step before."""
        return [(r.step, max(r.rates)) for r in self.of(Rates) if r.optimizer == optimizer and r.rates]

    def cycles(self, optimizer: int) -> Iterator[Cycle]:
        """What happened from one step of an optimizer to the next one, where all of it was seen."""
        since: list[Fact] | None = None
        for fact in self.facts:
            if isinstance(fact, Gap):
                since = None
            elif isinstance(fact, Stepped) and fact.optimizer == optimizer:
                if since is not None:
                    yield Cycle(since, fact)
                since = []
            elif since is not None:
                since.append(fact)

    @cached_property
    def trained(self) -> set[int]:
        """Modules that ran with gradients enabled."""
        return {ran.module for ran in self.of(ModuleRan) if ran.grad}

    def forwards(self, *, training: bool | None = None) -> list[Forward]:
        """Calls of modules that have parameters."""
        return [f for f in self.of(Forward) if f.parameters and training in (None, f.training)]


@dataclass(frozen=True)
class Cycle:
    """`between`: all facts after an optimizer's step and before its next one, which is `step`."""

    between: list[Fact]
    step: Stepped

    def of(self, kind: type[T]) -> list[T]:
        """The facts of a kind in between."""
        return [fact for fact in self.between if isinstance(fact, kind)]


def read(folder: Path, ranks: dict[int, int | None] | None = None) -> list[Look]:
    """The looks that the processes of a program left in `folder`; a line that is cut is left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        lines = path.read_text().split("\n")
        seen = list(_facts(lines[:-1]))
        found.append(Look(seen, (ranks or {}).get(int(path.stem)), int(path.stem)))
    for worker in [look for look in found if look.of(WorkerDrew) and not look.steps]:
        drawn: list[WorkerDrew] = worker.of(WorkerDrew)
        for parent in [look for look in found if look.pid == drawn[0].parent]:
            parent.of(WorkerDrew).extend(drawn)
    return [look for look in found if look.steps or look.of(OptimizerMade)]


def _facts(lines: Iterable[str]) -> Iterator[Fact]:
    for line in lines:
        yield facts.from_json(json.loads(line))
