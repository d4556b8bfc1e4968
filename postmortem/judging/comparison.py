"""Two runs side by side: the first step at which they differ, and what else differs between them.

Two runs part *exactly* at the first common step at which a logged value differs, and *beyond noise* at the first
step from which on the difference exceeds five times the step-to-step noise of the baseline for three points in a
row (the noise is 1.4826 × the median absolute first difference, divided by the square root of two).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.stats import SIGMA
from postmortem.core.view import View

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.run import Run
    from postmortem.core.series import Series

NOISE_FACTOR = 5.0
LASTING_POINTS = 3
_MACHINE = ("throughput", "step_time", "data_time", "memory")
_OUTCOMES = ("facts/run_id", "facts/exit_code", "facts/plan/done")
"""The name of a run and its last step are not settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The step at which one metric of two runs first differs; None if it does not within the common steps."""

    tag: str
    other_tag: str
    role: str | None
    common_steps: int
    exact_step: int | None
    values: tuple[float, float] | None
    """The two values at `exact_step`."""
    beyond_noise_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between two runs. `settings` maps a flattened key to its two values (None: not there)."""

    a: str
    b: str
    partings: tuple[Parting, ...]
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()

    @property
    def first(self) -> Parting | None:
        """The training metric that differs first; schedules count, speeds and memory of the machine do not."""
        parted = [p for p in self.partings if p.exact_step is not None and p.role not in _MACHINE]
        return min(parted, key=lambda p: (p.exact_step or 0, p.role is None, p.tag), default=None)

    def summary(self) -> str:
        """The comparison in one sentence."""
        if not any(p.common_steps for p in self.partings):
            return f"has no step in common with {self.a}"
        if self.first is None or self.first.values is None:
            return f"is identical to {self.a} at every common step"
        x, y = self.first.values
        text = f"first differs from {self.a} at step {self.first.exact_step}"
        text += f" ({self.first.tag} {y:.6g} instead of {x:.6g})"
        changed = [f"{key} {b!r} instead of {a!r}" for key, (a, b) in self.settings.items()]
        return text + (
            f"; settings that differ: {', '.join(changed[:5])}{', …' if len(changed) > 5 else ''}" if changed else ""
        )


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs that were read; `a` is the baseline whose noise counts."""
    left, right = View(a), View(b)
    partings = []
    matched: set[int] = set()
    only_a = []
    for series in left.series:
        other = _counterpart(series, left, right)
        if other is None:
            only_a.append(series.tag)
        else:
            matched.add(id(other))
            partings.append(_part(series, other))
    facts_a, facts_b = _settings(a), _settings(b)
    settings = {
        key: (facts_a.get(key), facts_b.get(key))
        for key in sorted({*facts_a, *facts_b})
        if facts_a.get(key) != facts_b.get(key)
    }
    unknown = (
        []
        if a.config and b.config
        else ["configuration: not logged by " + " and ".join(r.name for r in (a, b) if not r.config)]
    )
    if not any(word in key.lower() for key in {*facts_a, *facts_b} for word in ("git", "commit")):
        unknown.append("code version: not logged")
    unknown.append("data order: not logged; equal losses up to the first difference suggest the same order")
    return Comparison(
        a=a.name,
        b=b.name,
        partings=tuple(sorted(partings, key=lambda p: (p.exact_step is None, p.exact_step or 0, p.tag))),
        settings=settings,
        only_a=tuple(only_a),
        only_b=tuple(s.tag for s in right.series if id(s) not in matched),
        not_known=tuple(unknown),
    )


def _counterpart(series: Series, left: View, right: View) -> Series | None:
    same = next((s for s in right.series if s.tag == series.tag and s.rank == series.rank), None)
    if same is not None or series.role is None or left.main(series.role) is not series:
        return same
    return right.main(series.role)


def _part(a: Series, b: Series) -> Parting:
    common, i, j = np.intersect1d(a.step, b.step, return_indices=True)
    x, y = a.value[i], b.value[j]
    differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
    first = int(np.argmax(differs)) if differs.any() else None
    beyond = _beyond_noise(x, y)
    return Parting(
        tag=a.tag,
        other_tag=b.tag,
        role=a.role,
        common_steps=len(common),
        exact_step=None if first is None else int(common[first]),
        values=None if first is None else (float(x[first]), float(y[first])),
        beyond_noise_step=None if beyond is None else int(common[beyond]),
    )


def _beyond_noise(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    """Index from which on x and y differ by more than the noise of x for LASTING_POINTS points; None if never."""
    finite = np.isfinite(x)
    steps = np.abs(np.diff(x[finite]))
    noise = SIGMA * float(np.median(steps)) / math.sqrt(2) if len(steps) else 0.0
    with np.errstate(invalid="ignore"):
        apart = (np.abs(x - y) > NOISE_FACTOR * noise) | (np.isfinite(x) != np.isfinite(y))
    run = min(LASTING_POINTS, len(apart))
    if not run:
        return None
    lasting = np.lib.stride_tricks.sliding_window_view(apart, run).all(axis=1)
    return int(np.argmax(lasting)) if lasting.any() else None


def _settings(run: Run) -> dict[str, Any]:
    """Configuration and identifiers of a run, flattened: {"optim/lr": 0.1, "facts/host": "node1"}."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}/{key}" if prefix else str(key), inner)
        elif prefix not in _OUTCOMES:
            flat[prefix] = value

    walk("", run.config)
    for reading in run.readings:
        walk("facts", reading.facts)
    return flat
