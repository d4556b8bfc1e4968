"""Numbers and times of many rows at once, for rows that have their digits in the same columns.

Up to eight digits are a few multiplications of a whole word, and a decimal number of up to 15 digits is an exact
integer divided by an exact power of ten, so the result is the same double that float() gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.readers.text.lines.prefixes import YEARS
from postmortem.readers.text.records.tokens import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_EXACT = 10.0 ** np.arange(23)


class NumberSpan(NamedTuple):
    """The bytes of a number, relative to the runs of digits of its row.

    From `before` bytes before the start of run `first` to `after` bytes after the end of run `last`.
    """

    first: int
    before: int
    last: int
    after: int

    def span(self, runs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """(start, end) in a row with these runs of digits."""
        return runs[self.first][0] - self.before, runs[self.last][1] + self.after


class DigitColumns:
    """N rows of one layout: `words` uint64[n, w], `row` one of them, `runs` the spans of its runs of digits."""

    def __init__(self, words: NDArray[np.uint64], row: bytes, runs: list[tuple[int, int]]) -> None:
        self.words = np.ascontiguousarray(words)
        self.row = row
        self.runs = runs
        self.known: dict[tuple[int, int], NDArray[Any]] = {}

    def digits(self, start: int, end: int) -> NDArray[Any]:
        """The integers in the columns [start, end) of at most 16 digits; unsigned, of the narrowest type that works."""
        if (start, end) not in self.known:
            if end - start > 8:
                self.known[start, end] = self.digits(start, end - 8).astype(np.uint64) * np.uint64(10**8) + self.digits(
                    end - 8, end
                )
            else:
                self.known[start, end] = self._digits(start, end - start)
        return self.known[start, end]

    def _texts(self, start: int, width: int) -> NDArray[Any]:
        """The `width` bytes (1, 2, 4 or 8) of each row from the column `start` on, as one integer."""
        return np.ndarray((len(self.words),), f"<u{width}", self.words, start, (self.words.strides[0],))

    def _digits(self, start: int, n: int) -> NDArray[Any]:
        """Parse n digits of each row. The first is the lowest byte; digits are joined to pairs, fours and eights."""
        width = next(w for w in (1, 2, 4, 8) if n <= w)
        word: Any = np.dtype(f"<u{width}").type
        found: NDArray[Any] = self._texts(start, width) & word(0x0F0F0F0F0F0F0F0F >> (64 - 8 * width))
        if n < width:
            found <<= word(8 * (width - n))
        if width > 1:
            found = found * word(10) + (found >> word(8))
        if width == 2:
            found &= word(0xFF)
        if width == 4:
            found &= word(0x00FF00FF)
            found = found * word(100) + (found >> word(16))
            found &= word(0xFFFF)
        if width == 8:
            low = word(0x000000FF000000FF)
            found = (found & low) * word(0x000F424000000064) + ((found >> word(16)) & low) * word(0x0000271000000001)
            found >>= word(32)
        return found

    def number(self, place: NumberSpan) -> NDArray[np.float64]:
        """The decimal numbers at a place, bit for bit what float() reads."""
        start, end = place.span(self.runs)
        text = self.row[start:end]
        mantissa, _, power = text.lower().partition(b"e")
        figures = sum(b"0"[0] <= c <= b"9"[0] for c in mantissa)
        decimals = len(mantissa) - mantissa.index(b".") - 1 if b"." in mantissa else 0
        if figures > 15 or decimals > 22 or len(power) > 4 or b"#" in text:
            return self._by_float(start, end)
        (a, b), *others = [r for r in self.runs[place.first : place.last + 1] if r[0] < start + len(mantissa)]
        value = self.digits(a, b).astype(np.float64)
        for a, b in others:
            value *= _EXACT[b - a]
            value += self.digits(a, b)
        if power:
            value = self._scaled(value, place, start, end, power.startswith(b"-"), decimals)
        elif decimals:
            value /= _EXACT[decimals]
        return -value if mantissa.startswith(b"-") else value

    def _scaled(
        self, value: NDArray[np.float64], place: NumberSpan, start: int, end: int, negative: bool, decimals: int
    ) -> NDArray[np.float64]:
        """Integers times ten to the power printed after them, less the number of `decimals` of the mantissa."""
        power = self.digits(*self.runs[place.last])
        if (power == power[0]).all():
            power = power[:1]
        exponent = power.astype(np.int64) * (-1 if negative else 1) - decimals
        size = np.minimum(np.abs(exponent), 22)
        scaled = (
            value / _EXACT[size]
            if (exponent < 0).all()
            else np.where(exponent < 0, value / _EXACT[size], value * _EXACT[size])
        )
        if (far := np.broadcast_to(np.abs(exponent) > 22, len(value))).any():
            rows = np.flatnonzero(far)
            sign = -1 if self.row[start : start + 1] == b"-" else 1
            scaled[rows] = sign * self._by_float(start, end, rows)
        return scaled

    def _by_float(self, start: int, end: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        cells = (
            self.words.view(np.uint8)[:, start:end] if rows is None else self.words[rows].view(np.uint8)[:, start:end]
        )
        return np.array([number(cell.tobytes().decode("ascii", "replace")) for cell in cells])

    def step(self, place: NumberSpan) -> NDArray[np.int64]:
        """The numbers at a place as steps, clipped to int64."""
        return np.clip(self.number(place), -(2.0**62), 2.0**62).astype(np.int64)

    def seconds(self, parts: dict[str, int], year: int) -> NDArray[np.float64]:
        """Seconds since the epoch; NaN for dates that the calendar does not have.

        `parts` maps the parts of a date to their runs of digits: Y, M, D (or MD), h, m, s, f.
        """
        start = self.runs[min(parts.values())][0]
        last = max(self.runs[parts["MD" if "MD" in parts else "D"]][1] - 8, start)
        new = np.flatnonzero(_changes(self._texts(start, 8)) | _changes(self._texts(last, 8)))  # dates are few
        day = np.repeat(
            DigitColumns(self.words[new], self.row, self.runs).days(parts, year), np.diff(new, append=len(self.words))
        )
        n = {k: self.digits(*self.runs[parts[k]]) for k in ("h", "m", "s", "f") if k in parts}
        found: NDArray[np.float64] = day + ((n["h"].astype(np.int64) * 60 + n["m"]) * 60 + n["s"])
        if "f" in n:
            start, end = self.runs[parts["f"]]
            found += n["f"] / _EXACT[end - start]
        found[(n["h"] >= 24) | (n["m"] >= 60)] = np.nan
        return found

    def days(self, parts: dict[str, int], year: int) -> NDArray[np.float64]:
        """Seconds since the epoch at the start of the days; NaN if month or day is out of range."""
        n = {k: self.digits(*self.runs[parts[k]]).astype(np.int64) for k in ("Y", "M", "D", "MD") if k in parts}
        month, day = np.divmod(n["MD"], 100) if "MD" in n else (n["M"], n["D"])
        years = n.get("Y", np.full(len(day), year))
        ok = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (years >= YEARS.start) & (years < YEARS.stop)
        months = np.where(ok, (years - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
        days = months.astype("datetime64[D]").astype(np.int64) + day - 1
        return np.where(ok, days * 86_400.0, np.nan)


def _changes(texts: NDArray[Any]) -> NDArray[np.bool_]:
    """True where a text differs from the one before it, and for the first."""
    new = np.ones(len(texts), bool)
    np.not_equal(texts[1:], texts[:-1], out=new[1:])
    return new
