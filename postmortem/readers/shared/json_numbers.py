"""Reads numbers from JSON as programs log it: nested, with a bare NaN, or with non-finite numbers as strings."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postmortem.core.skipped import Skip

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
BLANK = {"", "none", "null", "n/a", "na", "--", "-"}
"""Texts that stand for no value, in small letters."""
_WRAPPED = re.compile(
    r"(?:tensor|array|Array|(?:np|numpy|torch|jnp)\.\w{1,20}+)\(\[?([^\[\],()\s]{1,60}+)[^\n]*+(?<=\))"
)
"""A number that was written as Python prints it: ``tensor(0.53, grad_fn=<MseLossBackward0>)``, ``np.float32(0.5)``."""
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


def written_number(text: str) -> float | None:
    """A text as a number, or None: also "nan" in any spelling, "81.25%" (81.25), and a number in a tensor's repr.

    None for "1_000", which `float` accepts.
    """
    text = text.strip().removesuffix("%")
    if "_" not in text:
        with suppress(ValueError):
            return float(text)
    if (name := NON_FINITE.get(text.lower())) is not None:
        return name
    wrapped = _WRAPPED.fullmatch(text)
    return None if wrapped is None else written_number(wrapped[1])


def is_blank(value: Any) -> bool:
    """Whether a value stands for none: null, or one of the texts `BLANK`."""
    return value is None or (isinstance(value, str) and value.strip().lower() in BLANK)


def why_no_number(value: Any) -> Skip:
    """The reason for which `number` returns None, as skipped values are counted."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Skip.TOO_LARGE
    return Skip.NOT_NUMERIC


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
