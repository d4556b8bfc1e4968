"""Rows that differ only in their digits are understood once.

The *skeleton* of a row is its bytes with every run of digits replaced by one; its *layout* also keeps how long the
runs are. A `Template` says, for a skeleton, which runs are values and which say where the training was. It is
learned from one row by the dialects or the miner and kept only if it reproduces what they say about that row
and about a second one with other digits. Rows of one layout are then read by columns (`_columns`).
"""

from __future__ import annotations

import re
from calendar import timegm
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.readers.text.bulk.digit_columns import Columns, Place
from postmortem.readers.text.records.miner import number
from postmortem.readers.text.steps.row_store import FIELDS, ROW, held, same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from postmortem.readers.text.lines.prefixes import Prefix
    from postmortem.readers.text.records.record import Record

RUN = re.compile(rb"(?:(?<![A-Za-z_@\d])|(?<=^[IWEFDC]))\d+")
"""A run of digits that is a number, or a part of one; the digits of a name (``loss_1``, ``mAP50``) are none."""
_NUMBERS = re.compile(rb"(?i)\d|\bnan\b|\binf")
LONGEST = 2048
"""Rows longer than this are not worth a layout."""

FEW = 4
"""Fewer rows of one layout than these are not worth learning it."""
MOST_TURNS = 400
"""From so many groups on they must have more than three rows each, on average, to be worth a turn each."""
_MIX = np.random.default_rng(20).integers(1, 2**63, LONGEST // 8 + 2, np.uint64) * np.uint64(2) + np.uint64(1)
_TILE = 64
"""Rows compared at a time: numpy is slow where the last axis is short."""
_DATES = (
    re.compile(rb"(?P<Y>\d{4})[-/](?P<M>\d\d)[-/](?P<D>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"),
    re.compile(rb"(?<!\d)(?P<M>\d\d)/(?P<D>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"),
    re.compile(rb"[A-Z](?P<MD>\d{4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"),
)


@dataclass(slots=True)
class Template:
    """How to read rows of one skeleton. `pure` False: each must be parsed on its own."""

    runs: int
    pure: bool = False
    dialect: int = -1
    """Who explained it; -1 nobody."""
    numbers: bool = False
    """It has numbers, whether or not they mean something."""
    hide: bool = False
    """No line of this skeleton can be a failure."""
    loud: int = 0
    """How many lines of it that can be one were read by columns."""
    row: Any = None
    codes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    values: list[Place] = field(default_factory=list)
    fixed: dict[int, float] = field(default_factory=dict)
    """Values without digits (nan, inf), by their position among the values."""
    step: Place | None = None
    total: Place | None = None
    epoch: Place | None = None
    epochs: Place | None = None
    rank: Place | None = None
    clock: dict[str, int] | None = None
    """Run of each part of the date: Y, M, D (or MD), h, m, s, f."""
    year: int = 1970


class Parsed(NamedTuple):
    """What the slow way says about one row."""

    record: Record | None
    row: tuple[Any, ...] | None
    codes: list[int]
    values: list[float]
    dialect: int
    prefix: Prefix
    offset: int
    """Where the text behind the prefix starts, in bytes."""


def runs_of(row: bytes) -> list[tuple[int, int]]:
    """Start and end of each run of digits."""
    return [m.span() for m in RUN.finditer(row)]


def learn(row: bytes, parse: Callable[[bytes], Parsed | None], peel_rank: Callable[[bytes], int | None], year: int) -> Template:
    """The template of a row's skeleton; one that is not `pure` where digits decide more than numbers."""
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
        told = parse(example)
        if told is None or told.row is None or not _agrees(template, example, told):
            return template
    template.pure = True
    return template


def _other_digits(row: bytes, start: int) -> bytes:
    """The row with the last digit of each number behind its prefix changed."""

    def change(match: re.Match[bytes]) -> bytes:
        return match[0] if match.start() < start else match[0][:-1] + b"%d" % ((match[0][-1] - 48 + 3) % 10)

    return RUN.sub(change, row)


def _fill(template: Template, row: bytes, runs: list[tuple[int, int]], parsed: Parsed, peel_rank: Callable[[bytes], int | None], year: int) -> bool:
    record = parsed.record
    assert record is not None
    assert parsed.row is not None
    body = row[parsed.offset :].decode("utf-8")
    ascii_only = len(body) == len(row) - parsed.offset

    def place(span: tuple[int, int]) -> Place | None:
        start, end = span
        if not ascii_only:
            start, end = len(body[:start].encode()), len(body[:end].encode())
        start, end = start + parsed.offset, end + parsed.offset
        inside = [i for i, (a, b) in enumerate(runs) if a >= start and b <= end]
        return Place(inside[0], runs[inside[0]][0] - start, inside[-1], end - runs[inside[-1]][1]) if inside else None

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
            found = Place(0, 0, 0, 0)
        template.values.append(found)
    for i in range(len(record.values), len(parsed.codes)):
        template.fixed[i] = float("nan")
        template.values.append(Place(0, 0, 0, 0))
    template.codes = np.array(parsed.codes, np.int32)
    by_step = record.step is not None and (record.level > 1 or record.n is None)
    said = {"epoch": record.epoch, "epochs": record.epochs, "total": record.total, "rank": record.rank}
    for name, wanted in (("step", record.step if by_step else record.n), *said.items()):
        if wanted is None:
            continue
        span = record.at.get("n" if name == "step" and not by_step else name)
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


def _rank_place(row: bytes, runs: list[tuple[int, int]], parsed: Parsed, peel_rank: Callable[[bytes], int | None]) -> Place | None:
    """Which number of the prefix is the rank: the one that, when it changes, changes the rank."""
    for i, (a, b) in enumerate(runs):
        if b > parsed.offset or b - a > 6:
            continue
        changed = row[: b - 1] + b"%d" % ((row[b - 1] - 48 + 1) % 10) + row[b:]
        if int(row[a:b]) == peel_rank(row) and int(changed[a:b]) == peel_rank(changed):
            return Place(i, 0, i, 0)
    return None


def _clock(prefix: bytes, runs: list[tuple[int, int]], wanted: float, year: int) -> dict[str, int] | None:
    at = {start: i for i, (start, _) in enumerate(runs)}
    for pattern in _DATES:
        for match in pattern.finditer(prefix):
            parts = {k: at[match.start(k)] for k, v in match.groupdict().items() if v is not None and match.start(k) in at}
            if len(parts) == sum(v is not None for v in match.groupdict().values()) and seconds(parts, runs, prefix, year) == wanted:
                return parts
    return None


def seconds(parts: dict[str, int], runs: Sequence[tuple[int, int]], row: bytes, year: int) -> float:
    """The time that a row's prefix names, in seconds since the epoch; NaN where the calendar has no such date."""
    n = {k: int(row[slice(*runs[i])]) for k, i in parts.items()}
    if "MD" in n:
        n["M"], n["D"] = divmod(n["MD"], 100)
    if not (1 <= n["M"] <= 12 and 1 <= n["D"] <= 31 and n["h"] < 24 and n["m"] < 60 and n.get("Y", year) >= 1970):
        return float("nan")
    whole = timegm((n.get("Y", year), n["M"], n["D"], n["h"], n["m"], 0)) + n["s"]
    if "f" not in parts:
        return float(whole)
    start, end = runs[parts["f"]]
    return whole + n["f"] / 10.0 ** (end - start)


def _agrees(template: Template, row: bytes, told: Parsed) -> bool:
    read = read_one(template, row)
    if read is None or told.row is None:
        return False
    mine, values = read
    theirs = np.array([told.row], ROW)[0]
    row_agrees = all(same(mine[name], theirs[name]) for name in FIELDS if name != "line")
    return row_agrees and told.codes == template.codes.tolist() and all(same(a, b) for a, b in zip(values, told.values, strict=True))


def read_one(template: Template, row: bytes) -> tuple[Any, list[float]] | None:
    """One row by its template -> (its `ROW`, its values); None where it has other runs."""
    runs = runs_of(row)
    if len(runs) != template.runs:
        return None
    values = [
        template.fixed[i] if i in template.fixed else number(row[slice(*place.span(runs))].decode("ascii", "replace"))
        for i, place in enumerate(template.values)
    ]
    out = template.row.copy()
    if template.step is not None:
        out["step"] = held(number(row[slice(*template.step.span(runs))].decode()))
    for name, counted in (("total", template.total), ("epochs", template.epochs)):
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


class Family:
    """Rows of one length that are the same but for their digits; `layouts` differ in the digits of names."""

    __slots__ = ("_slack", "_zeros", "layouts")

    def __init__(self, row: bytes) -> None:
        self.layouts: list[Layout] = []
        raw = np.frombuffer(row, np.uint8)
        digits = (raw >= 48) & (raw < 58)
        behind = np.zeros((len(row) // 8 + 2) * 8 - len(row), np.uint8)
        self._zeros = np.append(np.where(digits, np.uint8(48), raw), behind)
        self._slack = np.append(np.where(digits, np.uint8(9), np.uint8(0)), ~behind)

    def alike(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which rows uint64[n, w] of this length are of the family, whatever is behind their length."""
        raw, width = words.view(np.uint8), words.shape[1] * 8
        alike = np.ones(len(words), bool)
        if len(words) >= _TILE > len(self._zeros) // width:
            self._zeros, self._slack = np.tile(self._zeros, _TILE), np.tile(self._slack, _TILE)
        whole = len(words) - len(words) % (len(self._zeros) // width)
        for rows, size in ((slice(0, whole), len(self._zeros)), (slice(whole, None), width)):
            other = (raw[rows].reshape(-1, size) ^ self._zeros[:size]) > self._slack[:size]
            if other.any():
                alike[rows][np.flatnonzero(other) // width] = False
        return alike


class Layout:
    """Rows of one skeleton and one length whose runs stand at the same columns.

    `runs` are the columns of the runs of digits. `names` are the digits that belong to names and must be the same:
    (word, mask, the word under the mask).
    """

    __slots__ = ("names", "row", "runs", "template")

    def __init__(self, template: Template, row: bytes) -> None:
        self.template = template
        self.row = row
        self.runs = runs_of(row)
        inside = np.zeros(len(row), bool)
        for start, end in self.runs:
            inside[start:end] = True
        raw = np.frombuffer(row.ljust(-(-len(row) // 8) * 8, b"\0"), np.uint8)
        mask = np.where((raw >= 48) & (raw < 58), np.uint8(255), np.uint8(0))
        mask[: len(row)][inside] = 0
        masks, bytes_ = mask.view("<u8"), raw.view("<u8")
        self.names = [(int(i), masks[i], bytes_[i] & masks[i]) for i in np.flatnonzero(masks)]

    def named(self, words: NDArray[np.uint64], which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of these rows, of the layout's family, have the digits of its names, too."""
        for column, mask, wanted in self.names:
            which = which & ((words[:, column] & mask) == wanted)
        return which

    def read(self, words: NDArray[np.uint64]) -> tuple[dict[str, Any], list[Any]]:
        """All n rows, as uint64[n, w] with a spare word behind -> the fields of `ROW`, and the values: arrays of n, or what all n share."""
        t = self.template
        columns = Columns(words, self.row, self.runs)
        rows: dict[str, Any] = dict(zip(FIELDS, t.row.tolist(), strict=True))
        if t.step is not None:
            rows["step"] = columns.step(t.step)
        for name, counted in (("total", t.total), ("epochs", t.epochs)):
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


def fold(words: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """The rows uint64[n, w] with zeros for digits and for the bytes behind their `length`."""
    raw = words.view(np.uint8)
    other = raw - np.uint8(48)
    np.greater(other, 9, out=other.view(bool))
    other *= raw
    other[:, length:] = 0
    return other.view(np.uint64)


def hashes(folded: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number per row: equal rows have equal ones, others by an accident of 1 in 2**63. Who must be sure compares the rows, too."""
    found: NDArray[np.uint64] = np.einsum("ij,j->i", folded, _MIX[: folded.shape[1]])
    return found


def equal_keys(keys: NDArray[np.uint64]) -> list[NDArray[np.intp]]:
    """Positions of equal keys, group by group where a key is common; what is left comes last."""
    found: list[NDArray[np.intp]] = []
    left = np.arange(len(keys))
    while len(left) >= FEW and len(found) < 12:
        here = keys[left] == keys[left[0]]
        found.append(left[here])
        left = left[~here]
    if len(left) >= FEW:
        left = left[np.argsort(keys[left], kind="stable")]
        cuts = np.flatnonzero(keys[left][1:] != keys[left][:-1]) + 1
        groups = np.split(left, cuts) if len(cuts) < MOST_TURNS or len(left) > 3 * len(cuts) else [left]
        found += [g for g in groups if len(g) >= FEW and len(groups) > 1]
        left = np.concatenate([g for g in groups if len(g) < FEW or len(groups) == 1] or [left[:0]])
    return [*found, left]
