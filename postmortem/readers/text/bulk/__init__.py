"""The rows of a log in bulk: those of a known shape by columns, those that have no like by a simple pattern, the rest one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.text.bulk.name_value_scan import Quick
from postmortem.readers.text.bulk.templates import FEW, LONGEST, RUN, Family, Layout, Template, equal_keys, fold, hashes, learn, read_one
from postmortem.readers.text.failures.scanner import prefilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.rows import Ordered, Rows
    from postmortem.readers.text.row_parser import Understanding

MANY = 48
"""Fewer rows of one layout than these are not worth reading by columns."""
MOST_LAYOUTS, MOST_SKELETONS, MOST_VARIANTS = 50_000, 20_000, 64
STRANGERS, SAMPLE, STRETCH, LONGEST_STRETCH = 4_096, 256, 1_024, 131_072
"""After so many rows in a row whose words no other row has, a stretch is read by a simple pattern, then a sample properly.

As long as the sample is of strangers, too, the next stretch is twice as long."""
AT_ONCE = 65_536
LOUD = 64
"""Of rows of one kind that the search for events must see, as many have all lines near them shown: a warning of every step says no more."""


class Bulk:
    """Reads all rows of one log, block by block. `fast` False: each is parsed on its own."""

    def __init__(self, understanding: Understanding, fast: bool) -> None:
        self.understanding = understanding
        self.fast = fast
        self.families: dict[tuple[int, int], Family] = {}
        """By the length of their rows, and the hash of their folded bytes."""
        self.usual: dict[int, list[Family]] = {}
        """Those that many rows of a length were of, which are looked for first."""
        self.n_layouts = 0
        self.skeletons: dict[bytes, Template] = {}
        self.met: set[bytes] = set()
        self.strangers = 0
        """Rows in a row whose skeleton was new."""
        self.quick = Quick(understanding.track, len(understanding.dialects))
        self.stretch, self.since = STRETCH, 0
        """How many rows to read quickly, and how many were since the last ones that were read properly."""
        self.read_quickly = 0
        self.loud: list[NDArray[np.intp]] = []
        """Rows of this block that were read by columns, and that the search for events must see."""

    def read(self, rows: Rows, out: Ordered) -> NDArray[np.intp]:
        """Puts what the rows say into `out`, hides those that cannot be a failure -> those that may be news."""
        self.loud = []
        slow = self._by_layout(rows, out) if self.fast else rows.filled
        self._one_by_one(rows, slow, out)
        return np.concatenate([rows.that_may_matter(slow), *self.loud])

    def _by_layout(self, rows: Rows, out: Ordered) -> NDArray[np.intp]:
        """Reads the rows whose layout is known or common -> the others, in order."""
        slow: list[NDArray[np.intp]] = [rows.filled[rows.length[rows.filled] > LONGEST]]
        for length, group in rows.by_length():
            if len(group) < FEW:
                slow.append(group)
                continue
            words = rows.words(group, length)
            usual = self.usual.setdefault(length, [])
            for family in usual.copy():
                alike = family.alike(words)
                if 4 * np.count_nonzero(alike) < len(group):
                    usual.remove(family)
                slow.append(self._read(rows, family, *_only(alike, group, words), out))
                group, words = _only(~alike, group, words)
            if len(group):
                slow += self._by_key(rows, group, words, length, out)
        return np.sort(np.concatenate(slow))

    def _by_key(self, rows: Rows, group: NDArray[np.intp], words: NDArray[np.uint64], length: int, out: Ordered) -> Iterator[NDArray[np.intp]]:
        """Finds the families among rows of one length and reads them -> the rows that must be read one by one."""
        keys = hashes(fold(words, length))
        *common, rest = equal_keys(keys)
        yield group[rest]
        for same in common:
            key = length, int(keys[same[0]])
            if key not in self.families:
                if len(same) < FEW or len(self.families) >= MOST_LAYOUTS:
                    yield group[same]
                    continue
                self.families[key] = Family(rows.bytes(int(group[same[0]])))
            family, usual = self.families[key], self.usual[length]
            if 3 * len(same) > len(group) and family not in usual:
                usual.append(family)
            mine, its = (group, words) if len(same) == len(group) else (group[same], words.take(same, 0))
            alike = family.alike(its)
            yield mine[~alike]
            yield self._read(rows, family, *_only(alike, mine, its), out)

    def _read(self, rows: Rows, family: Family, group: NDArray[np.intp], words: NDArray[np.uint64], out: Ordered) -> NDArray[np.intp]:
        """Reads rows of one family -> those of them that must be read one by one."""
        left = np.ones(len(group), bool)
        slow = []
        for turn in range(MOST_VARIANTS):
            if turn == len(family.layouts):
                if np.count_nonzero(left) < FEW or self.n_layouts >= MOST_LAYOUTS:
                    break
                row = rows.bytes(int(group[np.argmax(left)]))
                family.layouts.append(Layout(self._template(row), row))
                self.n_layouts += 1
            layout = family.layouts[turn]
            here = layout.named(words, left)
            left = left & ~here
            where, mine = _only(here, group, words)
            template = layout.template
            if not template.pure or (template.row is not None and len(where) < MANY):
                slow.append(where)
            elif len(where):
                if template.row is not None:
                    found, values = layout.read(mine)
                    out.put(where, found, template.codes, values)
                self.understanding.count(template, len(where))
                if template.hide:
                    rows.hidden[where] = True
                else:
                    self.loud.append(where[: max(0, LOUD - template.loud)])
                    template.loud += len(where)
            if not left.any():
                break
        return np.concatenate([*slow, group[left]])

    def _template(self, row: bytes) -> Template:
        skeleton = RUN.sub(b"0", row)
        template = self.skeletons.get(skeleton)
        if template is None:
            template = learn(row, self.understanding.alone, self.understanding.rank_of, self.understanding.year)
            template.hide = template.pure and not prefilter().lines_in(row + b"\n")
            if len(self.skeletons) < MOST_SKELETONS:
                self.skeletons[skeleton] = template
        return template

    def _one_by_one(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> None:
        """Reads rows by their template where it is known, else by parsing, or quickly among strangers."""
        at = 0
        while at < len(which):
            if self.fast and self.strangers > STRANGERS and self.since < self.stretch:
                chunk = which[at : at + min(AT_ONCE, self.stretch - self.since)]
                self._quickly(rows, chunk, out)
                self.since += len(chunk)
            else:
                chunk = which[at : at + SAMPLE]
                new = self._parsed(rows, chunk, out)
                self.strangers = self.strangers + len(new) if len(new) > 0.8 * len(chunk) and len(chunk) >= FEW else 0
                if self.since:
                    self.stretch = min(2 * self.stretch, LONGEST_STRETCH) if self.strangers else STRETCH
                self.since = 0
            at += len(chunk)

    def _quickly(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> None:
        """Reads strangers quickly; among them may be rows of a known skeleton, if any has values."""
        if any(template.row is not None for template in self.skeletons.values()):
            known = np.array([RUN.sub(b"0", rows.bytes(i)) in self.skeletons for i in which.tolist()], bool)
            self._parsed(rows, which[known], out)
            which = which[~known]
        if len(which):
            self.read_quickly += self.quick.read(rows, which, out)
            rows.hidden[which] = True

    def _parsed(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> list[int]:
        """Reads rows one by one -> those whose skeleton was never met before."""
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
                    self.understanding.count(template, 1)
                    rows.hidden[i] = template.hide
                    continue
            for record in self.understanding.records(row, int(rows.line[i])):
                out.add(i, *record)
        return new


def _only(which: NDArray[np.bool_], group: NDArray[np.intp], words: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Some rows of a group, and their words."""
    return (group, words) if which.all() else (group[which], words.compress(which, 0))
