"""The result of a comparison of two runs. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from postmortem.core.display import Displayed
from postmortem.core.printable import printable

_SCHEDULES = ("lr",)
MACHINE = ("throughput", "step_time", "data_time", "memory")
"""Roles of what the machine does, not the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The step at which one metric of two runs first differs; None if it does not differ within the common steps."""

    tag: str
    other_tag: str
    role: str | None
    common_steps: int
    equal_steps: int
    """How many of the first common steps have equal values."""
    exact_step: int | None
    values: tuple[float, float] | None
    """The two values at `exact_step`."""
    beyond_noise_step: int | None
    shift: float | None = None
    """The mean of the second run above that of the first, where it is above, or below, in all parts of the run."""
    unit: str = "step"
    """What its steps count: "step" or "epoch"."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Displayed):
    """The differences between two runs. `settings` maps a flattened key to its two values (None: not set)."""

    a: str
    b: str
    partings: tuple[Parting, ...]
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()

    @property
    def first(self) -> Parting | None:
        """The training metric that differs first; of several at one step a schedule, which is set and not measured.
        Throughput and memory do not count."""
        parted = [p for p in self.partings if p.exact_step is not None and p.role not in MACHINE]
        return min(parted, key=self._order, default=None)

    @staticmethod
    def _order(parting: Parting) -> tuple[int, bool, bool, str]:
        p = parting
        return p.exact_step or 0, p.role not in _SCHEDULES, p.role is None, p.tag

    def __repr__(self) -> str:
        """One line; `print` shows the full text, and so does a notebook."""
        return f"<Comparison: {self.b!r} {' '.join(printable(self.summary())[:300].split())}>"

    def summary(self) -> str:
        """The comparison in one sentence."""
        if not any(p.common_steps for p in self.partings):
            return f"has no step in common with {self.a}"
        if self.first is None or self.first.values is None:
            return f"is identical to {self.a} at every common step"
        x, y = self.first.values
        text = f"first differs from {self.a} at {self.first.unit} {self.first.exact_step}"
        tag, other = self.first.tag, self.first.other_tag
        text += f" ({other} {y:.6g} instead of {'' if tag == other else f'{tag} '}{x:.6g})"
        changed = [f"{key} {b!r} instead of {a!r}" for key, (a, b) in self.settings.items()]
        return text + (
            f"; settings that differ: {', '.join(changed[:5])}{', …' if len(changed) > 5 else ''}" if changed else ""
        )
