"""Two runs side by side: the first step at which they differ, and what else differs between them.

Two runs part *exactly* at the first common step at which a logged value differs, and *beyond noise* at the first
step from which on the difference exceeds five times the step-to-step noise of the baseline for three points in a
row (the noise is 1.4826 × the median absolute first difference, divided by the square root of two). A smaller
difference is told too if it has one sign in each fifth of the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.comparison import Comparison, Parting
from postmortem.core.stats import SIGMA, median
from postmortem.core.view import View

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.run import Run
    from postmortem.core.series import Series

NOISE_FACTOR = 5.0
LASTING_POINTS = 3
PARTS, LEAST_OF_A_PART, SURE = 5, 6, 2.5
"""Parts of the common points, points of each, and standard errors of a mean difference that is no chance."""
_OUTCOMES = ("facts/run_id", "facts/display_name", "facts/exit_code")
"""The names of a run and its last step are not settings."""


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs that were read; `a` is the baseline whose noise counts."""
    left, right = View(a), View(b)
    name_a, name_b = (str(run.path) if a.name == b.name else run.name for run in (a, b))
    unit = "epoch" if a.step_axis == b.step_axis == "epoch" else "step"
    partings = []
    matched: set[int] = set()
    only_a = []
    for series in left.series:
        other = _counterpart(series, left, right)
        if other is None:
            only_a.append(series.tag)
        else:
            matched.add(id(other))
            partings.append(_part(series, other, unit))
    config_a, config_b = _flat(a.config), _flat(b.config)
    facts_a, facts_b = _facts(a), _facts(b)
    both = {key: (facts_a[key], facts_b[key]) for key in facts_a.keys() & facts_b.keys()}
    if config_a and config_b:
        both |= {key: (config_a.get(key), config_b.get(key)) for key in config_a.keys() | config_b.keys()}
    settings = {key: (x, y) for key, (x, y) in sorted(both.items()) if x != y}
    unknown = (
        []
        if a.config and b.config
        else ["configuration: not logged by " + " and ".join(n for r, n in ((a, name_a), (b, name_b)) if not r.config)]
    )
    if not any(word in key.lower() for key in {*config_a, *config_b, *facts_a, *facts_b} for word in ("git", "commit")):
        unknown.append("code version: not logged")
    unknown.append(f"data order: not logged; {_order_of_data(partings)}")
    return Comparison(
        a=name_a,
        b=name_b,
        partings=tuple(sorted(partings, key=lambda p: (p.exact_step is None, p.exact_step or 0, p.tag))),
        settings=settings,
        only_a=tuple(only_a),
        only_b=tuple(s.tag for s in right.series if id(s) not in matched),
        not_known=tuple(unknown),
    )


def _order_of_data(partings: list[Parting]) -> str:
    """What the losses tell of the order of the data, which no log names."""
    losses = [p for p in partings if p.role == "loss" and p.common_steps]
    if not losses:
        return "no loss is logged at a common step, which could tell"
    first = max(losses, key=lambda p: p.common_steps if p.exact_step is None else p.equal_steps)
    alike = first.common_steps if first.exact_step is None else first.equal_steps
    if not alike:
        return "the losses differ from the first common step on, so that they do not tell"
    name = "loss" if len(losses) == 1 else first.tag
    common = f"an equal {name} at the first common step"
    if alike > 1:
        common = f"equal {name if len(losses) > 1 else 'losses'} at the first {alike} common steps"
    return f"{common} suggest{'s' if alike == 1 or len(losses) > 1 else ''} the same order there"


def _counterpart(series: Series, left: View, right: View) -> Series | None:
    same = next((s for s in right.series if s.tag == series.tag and s.rank == series.rank), None)
    if same is not None or series.role is None or left.main(series.role) is not series:
        return same
    return right.main(series.role)


def _part(a: Series, b: Series, unit: str) -> Parting:
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
        equal_steps=len(common) if first is None else first,
        values=None if first is None else (float(x[first]), float(y[first])),
        beyond_noise_step=None if beyond is None else int(common[beyond]),
        shift=_shift(x, y),
        unit=unit,
    )


def _beyond_noise(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    """Index from which on x and y differ by more than the noise of x for LASTING_POINTS points; None if never."""
    finite = np.isfinite(x)
    steps = np.abs(np.diff(x[finite]))
    noise = SIGMA * median(steps) / math.sqrt(2) if len(steps) else 0.0
    with np.errstate(invalid="ignore"):
        apart = (np.abs(x - y) > NOISE_FACTOR * noise) | (np.isfinite(x) != np.isfinite(y))
    run = min(LASTING_POINTS, len(apart))
    if not run:
        return None
    lasting = np.lib.stride_tricks.sliding_window_view(apart, run).all(axis=1)
    return int(np.argmax(lasting)) if lasting.any() else None


def _shift(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """By how much y lies above x on average, if it lies above, or below, in each fifth of the common points; else None.

    In each by more than chance explains for differences of that spread. Values that differ by less than the noise from
    point to point may differ on average all the same.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    parts = np.array_split((y - x)[finite], PARTS)
    if len(parts[-1]) < LEAST_OF_A_PART:
        return None
    means = np.array([part.mean() for part in parts])
    errors = np.array([part.std(ddof=1) / math.sqrt(len(part)) for part in parts])
    same_way = (np.sign(means) == np.sign(means[0])).all()
    return float((y - x)[finite].mean()) if same_way and (np.abs(means) > SURE * errors).all() else None


def _facts(run: Run) -> dict[str, Any]:
    """What the files of a run say of it, such as its host, without its name and its end: {"facts/host": "node1"}."""
    facts = [_flat({k: v for k, v in reading.facts.items() if k != "plan"}, "facts") for reading in run.readings]
    plans = [reading.facts["plan"] for reading in run.readings if "plan" in reading.facts]
    planned = [{"facts/planned length": f"{p['planned']} {p['unit']}s"} for p in plans if p.get("planned")]
    return {key: value for of_one in [*facts, *planned] for key, value in of_one.items() if key not in _OUTCOMES}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level: {"optim/lr": 0.1}."""
    if not isinstance(value, dict):
        return {prefix: value}
    inner = [_flat(v, f"{prefix}/{key}" if prefix else str(key)) for key, v in value.items()]
    return {key: v for of_one in inner for key, v in of_one.items()}
