"""Templates: rows that differ only in their digits are parsed once.

The *skeleton* of a row is its bytes with every run of digits replaced by one; its *layout* also keeps how long the runs
are. A `Template` records, for a skeleton, which runs are values and which are the position of the training. It is
learned from one row, as the dialects or the miner parse it, and kept only if it reproduces their result for that row
and for a second one with other digits. Rows of one layout are then read column by column (`digit_columns`).
"""

from __future__ import annotations

import re
from calendar import timegm
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.readers.text.bulk.digit_columns import DigitColumns, NumberSpan
from postmortem.readers.text.lines.blocks import encoding_of
from postmortem.readers.text.lines.prefixes import is_a_date
from postmortem.readers.text.records.tokens import number
from postmortem.readers.text.steps.row_store import FIELDS, ROW, held, same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from postmortem.readers.text.lines.prefixes import Prefix
    from postmortem.readers.text.records.record import Record

RUN = re.compile(rb"(?:(?<![A-Za-z_@\d])|(?<=^[IWEFDC]))\d+")
"""A run of digits that is a number or part of one, not of a name (``loss_1``, ``mAP50``)."""
_NUMBERS = re.compile(rb"(?i)\d|\bnan\b|\binf")
LONGEST = 2048
"""Characters of the longest row that gets a layout."""
_DATES = (
    re.compile(
        rb"(?P<Y>\d{4})[-/](?P<M>\d\d)[-/](?P<D>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
    ),
    re.compile(rb"(?<!\d)(?P<M>\d\d)/(?P<D>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"),
    re.compile(rb"[A-Z](?P<MD>\d{4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"),
)


@dataclass(slots=True)
class Template:
    """How to read rows of one skeleton. If not `pure`, each row must be parsed on its own."""

    runs: int
    pure: bool = False
    dialect: int = -1
    """Index of the dialect that parsed it; -1 if none did."""
    numbers: bool = False
    """It has numbers, whether or not they are metrics."""
    hide: bool = False
    """No line of this skeleton can be a failure."""
    loud: int = 0
    """How many lines that can be a failure were read by columns."""
    row: Any = None
    codes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    values: list[NumberSpan] = field(default_factory=list)
    fixed: dict[int, float] = field(default_factory=dict)
    """Values without digits (nan, inf), by their index among the values."""
    step: NumberSpan | None = None
    total: NumberSpan | None = None
    other: NumberSpan | None = None
    other_total: NumberSpan | None = None
    epoch: NumberSpan | None = None
    epochs: NumberSpan | None = None
    rank: NumberSpan | None = None
    clock: dict[str, int] | None = None
    """Run of each part of the date: Y, M, D (or MD), h, m, s, f."""
    year: int = 1970

    def totals(self) -> tuple[tuple[str, NumberSpan | None], ...]:
        """The fields of totals, and where they are."""
        return ("total", self.total), ("other_total", self.other_total), ("epochs", self.epochs)


class Parsed(NamedTuple):
    """The full parse of one row."""

    record: Record | None
    row: tuple[Any, ...] | None
    codes: list[int]
    values: list[float]
    dialect: int
    prefix: Prefix
    offset: int
    """Where the text after the prefix starts, in bytes."""


def runs_of(row: bytes) -> list[tuple[int, int]]:
    """(start, end) of the runs of digits of a row."""
    return [m.span() for m in RUN.finditer(row)]


def learn(
    row: bytes, parse: Callable[[bytes], Parsed | None], peel_rank: Callable[[bytes], int | None], year: int
) -> Template:
    """The template of a row's skeleton; not `pure` if digits decide more than the numbers."""
    runs = runs_of(row)
    template = Template(len(runs), numbers=_NUMBERS.search(row) is not None)
    parsed = parse(row)
    if parsed is None:
        return template
    template.dialect = parsed.dialect
    other = _other_digits(row, parsed.offset)
    if parsed.record is None or parsed.row is None:
        again = parse(other) if other != row else parsed
        template.pure = again is not None and again.record is None and again.dialect == parsed.dialect
        return template
    if not _fill(template, row, runs, parsed, peel_rank, year):
        return template
    for example in (row, other):
        parsed_again = parse(example)
        if parsed_again is None or not _agrees(template, example, parsed_again):
            return template
    template.pure = True
    return template


def _other_digits(row: bytes, start: int) -> bytes:
    """The row with the last digit of each number after its prefix changed."""

    def change(match: re.Match[bytes]) -> bytes:
        return match[0] if match.start() < start else match[0][:-1] + b"%d" % ((match[0][-1] - 48 + 3) % 10)

    return RUN.sub(change, row)


def _fill(
    template: Template,
    row: bytes,
    runs: list[tuple[int, int]],
    parsed: Parsed,
    peel_rank: Callable[[bytes], int | None],
    year: int,
) -> bool:
    record = parsed.record
    assert record is not None
    assert parsed.row is not None
    body = row[parsed.offset :].decode(encoding_of(row))
    one_byte_each = len(body) == len(row) - parsed.offset

    def place(span: tuple[int, int]) -> NumberSpan | None:
        start, end = span
        if not one_byte_each:
            start, end = len(body[:start].encode()), len(body[:end].encode())
        start, end = start + parsed.offset, end + parsed.offset
        inside = [i for i, (a, b) in enumerate(runs) if a >= start and b <= end]
        return (
            NumberSpan(inside[0], runs[inside[0]][0] - start, inside[-1], end - runs[inside[-1]][1]) if inside else None
        )

    if record.once or len(parsed.codes) != len(record.values) + len(record.absent):
        return False
    for i, value in enumerate(record.values):
        if value.start < 0:
            return False
        found = place((value.start, value.end))
        if found is None:
            if np.isfinite(value.number):
                return False
            template.fixed[i] = value.number
            found = NumberSpan(0, 0, 0, 0)
        template.values.append(found)
    for i in range(len(record.values), len(parsed.codes)):
        template.fixed[i] = float("nan")
        template.values.append(NumberSpan(0, 0, 0, 0))
    template.codes = np.array(parsed.codes, np.int32)
    counter = ("step", record.step) if record.by_step else ("n", record.n)
    counters = {"step": (counter[1], record.at.get(counter[0])), **record.beside()}
    counters |= {name: (getattr(record, name), record.at.get(name)) for name in ("epoch", "epochs", "total", "rank")}
    for name, (wanted, span) in counters.items():
        if wanted is None:
            continue
        found = place(span) if span is not None else None
        if found is None:
            return False
        setattr(template, name, found)
    template.row = np.array([parsed.row], ROW)[0]
    if parsed.prefix.best_rank is not None:
        template.rank = _rank_place(row, runs, parsed, peel_rank)
    if parsed.prefix.wall_time is not None:
        template.clock = _clock(row[: parsed.offset], runs, parsed.prefix.wall_time, year)
        template.year = year
        return template.clock is not None
    return record.wall_time is None


def _rank_place(
    row: bytes, runs: list[tuple[int, int]], parsed: Parsed, peel_rank: Callable[[bytes], int | None]
) -> NumberSpan | None:
    """The number of the prefix that is the rank: the rank changes with it."""
    for i, (a, b) in enumerate(runs):
        if b > parsed.offset or b - a > 6:
            continue
        changed = row[: b - 1] + b"%d" % ((row[b - 1] - 48 + 1) % 10) + row[b:]
        if int(row[a:b]) == peel_rank(row) and int(changed[a:b]) == peel_rank(changed):
            return NumberSpan(i, 0, i, 0)
    return None


def _clock(prefix: bytes, runs: list[tuple[int, int]], wanted: float, year: int) -> dict[str, int] | None:
    at = {start: i for i, (start, _) in enumerate(runs)}
    for pattern in _DATES:
        for match in pattern.finditer(prefix):
            parts = {
                k: at[match.start(k)] for k, v in match.groupdict().items() if v is not None and match.start(k) in at
            }
            if (
                len(parts) == sum(v is not None for v in match.groupdict().values())
                and seconds(parts, runs, prefix, year) == wanted
            ):
                return parts
    return None


def seconds(parts: dict[str, int], runs: Sequence[tuple[int, int]], row: bytes, year: int) -> float:
    """The time in a row's prefix, in seconds since the epoch; NaN for a date that the calendar does not have."""
    n = {k: int(row[slice(*runs[i])]) for k, i in parts.items()}
    if "MD" in n:
        n["M"], n["D"] = divmod(n["MD"], 100)
    if not is_a_date(n.get("Y", year), n["M"], n["D"], n["h"], n["m"]):
        return float("nan")
    whole = timegm((n.get("Y", year), n["M"], n["D"], n["h"], n["m"], 0)) + n["s"]
    if "f" not in parts:
        return float(whole)
    start, end = runs[parts["f"]]
    return whole + n["f"] / 10.0 ** (end - start)


def _agrees(template: Template, row: bytes, parsed: Parsed) -> bool:
    """Whether the template reads the same from a row as the full parse."""
    read = read_one(template, row)
    if read is None or parsed.row is None:
        return False
    mine, values = read
    theirs = np.array([parsed.row], ROW)[0]
    row_agrees = all(same(mine[name], theirs[name]) for name in FIELDS if name != "line")
    return (
        row_agrees
        and parsed.codes == template.codes.tolist()
        and all(same(a, b) for a, b in zip(values, parsed.values, strict=True))
    )


def read_one(template: Template, row: bytes) -> tuple[Any, list[float]] | None:
    """Read one row by its template: (its `ROW`, its values); None if its runs of digits differ."""
    runs = runs_of(row)
    if len(runs) != template.runs:
        return None
    values = [
        template.fixed[i] if i in template.fixed else number(row[slice(*place.span(runs))].decode("ascii", "replace"))
        for i, place in enumerate(template.values)
    ]
    out = template.row.copy()
    for name, counter in (("step", template.step), ("other", template.other)):
        if counter is not None:
            out[name] = held(number(row[slice(*counter.span(runs))].decode()))
    for name, counted in template.totals():
        if counted is not None:
            count = number(row[slice(*counted.span(runs))].decode())
            out[name] = int(count) if 0 < count < 2**31 else -1
    if template.epoch is not None:
        out["epoch"] = number(row[slice(*template.epoch.span(runs))].decode())
    if template.rank is not None:
        rank = int(row[slice(*template.rank.span(runs))])
        out["rank"] = rank if rank < 32768 else -1
    if template.clock is not None:
        out["wall_time"] = seconds(template.clock, runs, row, template.year)
    return out, values


class RowLayout:
    """Rows of one skeleton and one length whose runs of digits are at the same columns, `runs`."""

    __slots__ = ("row", "runs", "template")

    def __init__(self, template: Template, row: bytes) -> None:
        self.template = template
        self.row = row
        self.runs = runs_of(row)

    def read(self, words: NDArray[np.uint64], differing: dict[str, NDArray[Any]]) -> tuple[dict[str, Any], list[Any]]:
        """Read n rows, given as uint64[n, w] with a spare word at the end.

        `differing` are fields that the template sets and that differ from row to row. Returns the fields of `ROW` and
        the values: arrays of n, or one number that all n share.
        """
        t = self.template
        columns = DigitColumns(words, self.row, self.runs)
        rows: dict[str, Any] = dict(zip(FIELDS, t.row.tolist(), strict=True)) | differing
        for name, counter in (("step", t.step), ("other", t.other)):
            if counter is not None:
                rows[name] = columns.step(counter)
        for name, counted in t.totals():
            if counted is not None:
                count = columns.number(counted)
                rows[name] = np.where((count > 0) & (count < 2**31), count, -1).astype(np.int32)
        if t.epoch is not None:
            rows["epoch"] = columns.number(t.epoch)
        if t.rank is not None:
            rank = columns.number(t.rank)
            rows["rank"] = np.where(rank < 32768, rank, -1).astype(np.int16)
        if t.clock is not None:
            rows["wall_time"] = columns.seconds(t.clock, t.year)
        return rows, [t.fixed[i] if i in t.fixed else columns.number(place) for i, place in enumerate(t.values)]
