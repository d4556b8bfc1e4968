"""Reads numbers from JSON as programs log it: nested, with a bare NaN, or with non-finite numbers as strings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

NON_FINITE = {
    "nan": math.nan,
    "-nan": math.nan,
    "+nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
DEEPEST = 50
"""Objects nested deeper than this hold no metrics."""


def number(value: Any) -> float | None:
    """`value` as a float if it is a number or the name of a non-finite one, else None; booleans give None.

    An integer beyond float64 gives None, not an infinity: no program counts or measures that far, its digits are
    damaged.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        return NON_FINITE.get(value.strip().lower())
    return None


def why_no_number(value: Any) -> str:
    """The reason for which `number` returns None, as skipped values are counted."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "integers beyond any float (damaged)"
    return "values that are no numbers"


def step_number(value: Any) -> int | None:
    """`value` as a step: a finite number that fits in 62 bits, rounded down, else None."""
    step = number(value)
    return None if step is None or not abs(step) < 2**62 else math.floor(step)


def leaves(
    row: dict[str, Any], separator: str = "/", prefix: str = "", depth: int = DEEPEST
) -> Iterator[tuple[str, Any]]:
    """The values of a nested object with their keys joined: ``{"a": {"b": 1}}`` yields ``("a/b", 1)``."""
    for key, value in row.items():
        if isinstance(value, dict) and depth:
            yield from leaves(value, separator, f"{prefix}{key}{separator}", depth - 1)
        else:
            yield prefix + key, value
