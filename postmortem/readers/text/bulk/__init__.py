"""Reads blocks of rows.

Rows with a known template are read column by column, rows unlike any other with a simple name=value scan, the rest one
at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from postmortem.readers.text.bulk.families import FEW, Family, Usual, equal_keys, fold
from postmortem.readers.text.bulk.name_value_scan import NameValueScan
from postmortem.readers.text.bulk.templates import LONGEST, RUN, RowLayout, Template, learn, read_one
from postmortem.readers.text.bulk.variants import hashes
from postmortem.readers.text.failures.scanner import prefilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.collect import Ordered
    from postmortem.readers.text.bulk.rows import Rows
    from postmortem.readers.text.bulk.templates import Parsed
    from postmortem.readers.text.dialects import Dialect
    from postmortem.readers.text.steps.row_store import RowStore

MANY = 48
"""The fewest rows of one layout that are worth reading by columns."""
MOST_LAYOUTS, MOST_SKELETONS, MOST_VARIANTS = 50_000, 20_000, 256
STRANGERS, SAMPLE, STRETCH, LONGEST_STRETCH = 4_096, 256, 1_024, 131_072
"""After STRANGERS consecutive rows with no shared template, scan STRETCH rows with the simple pattern, then parse
SAMPLE rows fully to see whether that still pays. As long as it does, the next stretch is twice as long."""
AT_ONCE = 65_536
LOUD = 64
"""For each template, pass the neighbourhood of at most LOUD matching rows to the event search; a warning repeated every
step adds nothing."""


class Parser(Protocol):
    """Parses single rows, see `row_parser.RowParser`."""

    store: RowStore
    dialects: list[Dialect]
    year: int

    def records(self, row: bytes, line: int) -> Iterable[tuple[Any, list[int], list[float]]]: ...
    def alone(self, row: bytes) -> Parsed | None: ...
    def rank_of(self, row: bytes) -> int | None: ...
    def count(self, template: Template, n: int) -> None: ...


class Bulk:
    """Reads all rows of one log, block by block. With `fast` False each row is parsed on its own."""

    def __init__(self, parser: Parser, fast: bool) -> None:
        self.parser = parser
        self.fast = fast
        self.families: dict[tuple[int, int], Family] = {}
        """By the length of their rows and the hash of their folded bytes."""
        self.usual: dict[int, Usual] = {}
        """By length: the families that many rows were of. They are tried first."""
        self.n_layouts = 0
        self.skeletons: dict[bytes, Template] = {}
        self.met: set[bytes] = set()
        self.strangers = 0
        """Consecutive rows whose skeleton was new."""
        self.scan = NameValueScan(parser.store, len(parser.dialects))
        self.stretch, self.since = STRETCH, 0
        """How many rows to scan before the next sample, and how many were scanned since the last."""
        self.n_scanned = 0
        self.loud: list[NDArray[np.intp]] = []
        """Rows of this block that were read by columns and that the event search must see."""

    def read(self, rows: Rows, out: Ordered) -> NDArray[np.intp]:
        """Put the records of rows into `out`, hide rows that cannot be a failure; return the rows that may be one."""
        self.loud = []
        slow = self._by_layout(rows, out) if self.fast else rows.filled
        self._one_by_one(rows, slow, out)
        return np.concatenate([rows.that_may_matter(slow), *self.loud])

    def _by_layout(self, rows: Rows, out: Ordered) -> NDArray[np.intp]:
        """Read the rows whose layout is known or common; return the others, in order."""
        slow: list[NDArray[np.intp]] = [rows.filled[rows.length[rows.filled] > LONGEST]]
        for length, group in rows.by_length():
            if len(group) < FEW:
                slow.append(group)
                continue
            usual = self.usual.setdefault(length, Usual(length))
            total, others = len(group), []
            if usual.families:
                *told, group = usual.told_apart(rows, group)
                for family, mine in zip(usual.families.copy(), told, strict=True):
                    alike, rest = self._read(rows, family, mine, length, out)
                    usual.note(family, len(mine) - len(rest), total)
                    slow.append(alike)
                    others.append(rest)
            group = np.sort(np.concatenate([group, *others])) if others else group
            if len(group):
                slow += self._by_key(rows, group, usual, total, out)
        return np.sort(np.concatenate(slow))

    def _by_key(
        self, rows: Rows, group: NDArray[np.intp], usual: Usual, total: int, out: Ordered
    ) -> Iterator[NDArray[np.intp]]:
        """Find the families among rows of one length and read them; yield the rows that must be read one at a time.

        `total` is the number of rows of that length.
        """
        length = usual.length
        keys = hashes(fold(rows.words(group, length), length))
        *common, rest = equal_keys(keys)
        yield group[rest]
        for same in common:
            key = length, int(keys[same[0]])
            if key not in self.families:
                if len(same) < FEW or len(self.families) >= MOST_LAYOUTS:
                    yield group[same]
                    continue
                self.families[key] = Family(rows.bytes(int(group[same[0]])))
            usual.note(self.families[key], len(same), total)
            yield from self._read(rows, self.families[key], group[same], length, out)

    def _read(
        self, rows: Rows, family: Family, group: NDArray[np.intp], length: int, out: Ordered
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Read rows of one length that may be of a family; return those that must be read one at a time, and those that
        are not of it."""
        slow, rest = [group[:0]], group[:0]
        words = rows.words(group, length)
        alike = family.alike(words)
        if alike is not None:
            group, rest, words = group[alike], group[~alike], words.compress(alike, 0)
        for here, layout, differing in family.together(self._variants(rows, family, group, words)):
            where = group[here]
            if layout is None or not layout.template.pure or (layout.template.row is not None and len(where) < MANY):
                slow.append(where)
                continue
            template = layout.template
            if template.row is not None:
                found, values = layout.read(words if len(here) == len(words) else words.take(here, 0), differing)
                out.put(where, found, template.codes, values)
            self.parser.count(template, len(where))
            if template.hide:
                rows.hidden[where] = True
            else:
                self.loud.append(where[: max(0, LOUD - template.loud)])
                template.loud += len(where)
        return np.concatenate(slow), rest

    def _variants(
        self, rows: Rows, family: Family, group: NDArray[np.intp], words: NDArray[np.uint64]
    ) -> NDArray[np.intp]:
        """The variants of a family that the rows are of; new ones are learned."""
        variants = family.variants(words)
        new = np.flatnonzero(variants < 0)
        left, known = len(new), len(family.layouts)
        if left < FEW or known >= MOST_VARIANTS:
            return variants
        for names, here in family.new(words[new]):
            if left < FEW or len(family.layouts) >= MOST_VARIANTS or self.n_layouts >= MOST_LAYOUTS:
                break
            self.n_layouts += 1
            row = rows.bytes(int(group[new[here[0]]]))
            family.add(names, RowLayout(self._template(row), row))
            left -= len(here)
        return family.variants(words) if len(family.layouts) > known else variants

    def _template(self, row: bytes) -> Template:
        skeleton = RUN.sub(b"0", row)
        template = self.skeletons.get(skeleton)
        if template is None:
            template = learn(row, self.parser.alone, self.parser.rank_of, self.parser.year)
            template.hide = template.pure and not prefilter().lines_in(row + b"\n")
            if len(self.skeletons) < MOST_SKELETONS:
                self.skeletons[skeleton] = template
        return template

    def _one_by_one(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> None:
        """Read rows by their template if it is known, else parse them, or scan them if none resembles another."""
        at = 0
        while at < len(which):
            if self.fast and self.strangers > STRANGERS and self.since < self.stretch:
                chunk = which[at : at + min(AT_ONCE, self.stretch - self.since)]
                self._scanned(rows, chunk, out)
                self.since += len(chunk)
            else:
                chunk = which[at : at + SAMPLE]
                new = self._parsed(rows, chunk, out)
                self.strangers = self.strangers + len(new) if len(new) > 0.8 * len(chunk) and len(chunk) >= FEW else 0
                if self.since:
                    self.stretch = min(2 * self.stretch, LONGEST_STRETCH) if self.strangers else STRETCH
                self.since = 0
            at += len(chunk)

    def _scanned(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> None:
        """Scan rows for name=value pairs, but parse those of a known skeleton if any skeleton has values."""
        if any(template.row is not None for template in self.skeletons.values()):
            known = np.array([RUN.sub(b"0", rows.bytes(i)) in self.skeletons for i in which.tolist()], bool)
            self._parsed(rows, which[known], out)
            which = which[~known]
        if len(which):
            self.n_scanned += self.scan.read(rows, which, out)
            rows.hidden[which] = True

    def _parsed(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> list[int]:
        """Read rows one at a time; return those whose skeleton is new."""
        new: list[int] = []
        for i in which.tolist():
            row = rows.bytes(i)
            if self.fast and len(row) <= LONGEST:
                skeleton = RUN.sub(b"0", row)
                template = self.skeletons.get(skeleton)
                if template is None:
                    if skeleton in self.met:
                        template = self._template(row)
                    else:
                        new.append(i)
                        if len(self.met) < MOST_SKELETONS:
                            self.met.add(skeleton)
                if template is not None and template.pure:
                    if template.row is not None and (read := read_one(template, row)) is not None:
                        found, values = read
                        out.add(i, found, template.codes.tolist(), values)
                    self.parser.count(template, 1)
                    rows.hidden[i] = template.hide
                    continue
            for record in self.parser.records(row, int(rows.line[i])):
                out.add(i, *record)
        return new
