"""Numbers in JSON as programs log them: nested, with bare NaN, or with non-finite numbers as text."""

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
"""Objects nested deeper than this are not metrics."""


def number(value: Any) -> float | None:
    """`value` as a float where it is a number, or the name of a non-finite one; None else, for booleans too.

    An integer beyond float64 is none: no program counts or measures that far, its digits are damaged. It is no infinity.
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
    """What a value for which `number` gives None is counted as."""
    return "integers beyond any float (damaged)" if isinstance(value, int) and not isinstance(value, bool) else "values that are no numbers"


def step_number(value: Any) -> int | None:
    """`value` as a step: a finite number that fits 62 bits, rounded down; None else."""
    step = number(value)
    return None if step is None or not abs(step) < 2**62 else math.floor(step)


def leaves(row: dict[str, Any], separator: str = "/", prefix: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """The values of a nested object with their keys joined: {"a": {"b": 1}} gives "a/b"."""
    for key, value in row.items():
        if isinstance(value, dict) and depth:
            yield from leaves(value, separator, f"{prefix}{key}{separator}", depth - 1)
        else:
            yield prefix + key, value
