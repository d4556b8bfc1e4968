"""The general miner: finds named numbers in print styles that no dialect describes.

One pass over the numbers of a row. The text in front of a number names it: ``key=1``, ``key: 1``, ``key 1``, JSON and
Python dicts (nested keys are joined by ``/``), ``name 1.23 (1.30)``, ``12/100``, ``[3, 100]``, tables with bars.
Every pattern is anchored at what precedes it and uses possessive repeats, so the time is linear in the row's length.
"""

from __future__ import annotations

import re
from dataclasses import replace

from postmortem.core.roles import role_of
from postmortem.readers.text.records.inert import INERT
from postmortem.readers.text.records.names import (
    OF_LOSSES,
    Named,
    further_value,
    is_cell,
    is_label,
    is_mean,
    is_part,
    letters,
    name_of,
    with_unit,
)
from postmortem.readers.text.records.placing import (
    counted_by,
    epoch_anywhere,
    is_bare,
    is_listing,
    is_of_settings,
    of_the_best,
    ordinal_head,
    parts,
    place,
    place_before_word,
    place_fraction,
    place_in_epoch,
    place_unnamed,
    position_before,
    position_of_first,
    rename_best,
    take_rank,
    value_after,
)
from postmortem.readers.text.records.prose import HEADING, NEW_RATE, OBJECT, is_sentence, reversed_row
from postmortem.readers.text.records.record import Record, Trust, Value
from postmortem.readers.text.records.split_words import (
    follow_held_out,
    give_splits,
    inherit_split,
    is_of_another_pass,
    letters_of_label,
    split_of_row,
)
from postmortem.readers.text.records.step_words import HELD_OUT, POSITIONS, SPLITS, is_of_held_out
from postmortem.readers.text.records.tokens import (
    LONGEST_ROW,
    SUFFIX,
    TIME_UNITS,
    TOKEN,
    TOKEN_CJK,
    WORD_PAIRS,
    after_label,
    apart,
    end_of_several,
    number,
    rate_of,
)

_CJK = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af\uff00-\uff60]")
_NARROW = {0xFF1A: ":", 0xFF0C: ",", 0xFF1D: "=", 0xFF08: "(", 0xFF09: ")", 0xFF05: "%", 0x3000: " "}
"""Full-width punctuation of East Asian texts and its ASCII equivalent."""
_ORDINAL = re.compile(r"\s*+(?:个|個)?(?:(?P<epoch>轮|輪|エポック|[Ee]poch)|(?P<step>步|次迭代|ステップ|[Ss]tep))")
_PERCENT = re.compile(r"\s*+\(\s*+([\d.]++) ?%\)")
_GROUP = re.compile(r"(\w{1,60})\[\s*+[\w./@\-]{1,80}\s*+[=:]\s*+$")
_NESTED = re.compile(r"""['"]([^'"]{1,80})['"]\s*:\s*\{|[{}]""")
_SCORES = ("loss", "val_loss", "accuracy", "val_accuracy", "perplexity", "reward")
_REMARK = re.compile(r"\([-+]?[\d.]++[A-Za-zσ]{1,3}\)")  # "loss 2.31 (+0.10z)|"
_COUNTED = re.compile(r"(?i)(?:tokens|samples|sequences|seqs|images|imgs|examples|frames|sentences|words)(?: seen)?")
"""What a training may count in place of steps, as the first name of a row."""
_NO_VALUE = re.compile(r"(?i)\bnon-?finite\b|\b(?:skipp?(?:ed|ing)|detected|encountered|found|invalid)\b")
"""Words of a message about a value that is not finite; the message is an event, no point of a metric."""


def mine(text: str, start: int = 0, *, demand: bool = True) -> Record | None:
    """Values and position of the row text[start:], or None if it has no named number.

    With `demand`, a row that looks like a sentence gives None. Dialects that know the row to be one of metrics pass
    False.
    """
    if demand and INERT.match(text):
        return None
    return RowMiner(apart(text[:LONGEST_ROW]), start).mine(demand=demand)


class RowMiner:
    """One pass over the numbers of a row: one method per kind of number, and a decision at the end.

    `end` is where the text begins that no number has used yet. `covered` counts the letters of names and `leftover`
    all others: a row of metrics has more of the former, a sentence more of the latter.
    """

    covered = leftover = 0
    plural = False
    """The epoch is named in the plural: it may be how many there will be."""
    of_ranks = False
    """The position is in parentheses, as ``(0/4)``: a rank and the number of ranks if a step follows."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.heading = text, ""  # `heading` names the losses which follow, each by its part
        self.start = self.end = start
        self.record = Record()
        self.splits: list[tuple[int, str]] = []
        """Words for the data, each with the index of the first value after it."""
        self.weak: list[int] = []
        """Indices of values without a sign or a known role: they count if the whole row is made of pairs."""
        self.path: list[str] = []
        """Keys of the dicts around the current number."""

    def mine(self, *, demand: bool) -> Record | None:
        """Values and position of the row, or None if it is not a row of metrics."""
        token, is_cjk = TOKEN, False
        if not self.text.isascii() and _CJK.search(self.text):
            self.text, token, is_cjk = self.text.translate(_NARROW), TOKEN_CJK, True
        text, nested = self.text, "{" in self.text
        self.end = ordinal_head(self.record, text, self.start)
        for match in token.finditer(text, self.start):
            begin, end, kind = match.start(), self.end, match.lastgroup
            if begin < end:
                continue  # part of a percentage or a list that was already used
            if text[begin - 1 : begin] == "(" and self.record.values and (remark := _REMARK.match(text, begin - 1)):
                self.end = remark.end()
                continue
            # after rejected words ("nan") the text in front may be long, but a name is not
            gap = text[max(end, begin - (200 if kind == "nonfinite" else 2000)) : begin]
            if nested and ("{" in gap or "}" in gap):
                self._walk(gap)
            if self._passes_over(match, gap):
                continue
            if is_cjk and self._ordinal(match, gap):
                continue
            if (further := further_value(self.record.values, text, gap, match)) is not None:
                self.record.values.append(further)
                self.end = match.end()
                continue
            named = name_of(gap) if gap else None
            if kind == "b":
                self._fraction(match, gap, named)
            elif kind == "nonfinite":
                if named is not None and not self._is_word(match, named):
                    self._named(match, gap, named, match.span("nonfinite"))
            elif named is not None:
                self._named(match, gap, named, match.span("number"))
            else:
                self._unnamed(match, gap)
        if self.of_ranks:
            take_rank(self.record)
        give_splits(self.record, self.splits)
        return self._decide(demand)

    def _passes_over(self, match: re.Match[str], gap: str) -> bool:
        """Pass over what is no number of a metric: a duration, a date, ``output #0:``, part of a number."""
        text, stop, kind = self.text, match.end(), match.lastgroup
        if kind == "duration":
            self.covered += letters(gap)
        elif (
            kind == "junk"
            or is_part(text, stop, kind)
            or (gap[-1:] == "#" and text.startswith(":", stop) and is_label(gap))
        ):
            self.leftover += letters(gap) // 2
        else:
            return False
        self.end = stop
        return True

    def _walk(self, gap: str) -> None:
        """Keep `path` up to date with the braces of dicts."""
        for match in _NESTED.finditer(gap[-4000:]):
            if match[1] is not None:
                self.path.append(match[1])
            elif match[0] == "}" and self.path:
                self.path.pop()

    def _ordinal(self, match: re.Match[str], gap: str) -> bool:
        """Take the 3 of ``第 3 轮`` (the third epoch), if this is one."""
        found = _ORDINAL.match(self.text, match.end()) if gap.rstrip().endswith("第") else None
        if found is None or match["nonfinite"]:
            return False
        where = POSITIONS["epoch" if found["epoch"] else "step"]
        if match["b"]:
            place_fraction(self.record, where, match)
        else:
            place(self.record, where, match["number"], match.span("number"), "")
        self.end = found.end()
        return True

    def _fraction(self, match: re.Match[str], gap: str, named: Named | None) -> None:
        """``12/100``: an epoch, a step of a known total, a position, or a share such as the correct answers."""
        record, before = self.record, gap.strip(" ,;")
        self.end = match.end()
        if before == "(" and record.values:
            return  # "Acc: 50.0% (155/310)": the counts of the percentage
        first = record.n is None
        if not (place_in_epoch(record, match, before)):
            self._take_fraction(match, named)
        if before == "(" and first and record.n is not None and self.text.startswith(")", self.end):
            self.of_ranks = True
        if named is not None:
            self.covered += len(named.name)
            self.leftover += named.leftover

    def _take_fraction(self, match: re.Match[str], named: Named | None) -> None:
        record, text = self.record, self.text
        percent = _PERCENT.match(text, match.end())
        if percent:
            self.end = percent.end()
        if named is not None and (where := counted_by(named)) is not None:
            place_fraction(record, where, match)
            if not record.values and not text[self.end :].strip() and is_of_held_out(named.name):
                record.evaluation = True  # "Evaluating iter 3/50": the inner counter of an evaluation places no rows
        elif named is not None and role_of(named.name) in ("accuracy", "val_accuracy"):
            n, total = parts(match)
            record.once = True
            record.values.append(Value(named.name, float(percent[1]) if percent else n / (total or 1)))
        elif record.n is None and is_bare(named, text, match.end()):
            n, total = parts(match)
            if total is not None and n > total:
                return  # "77/72 = 1.07" is a quotient
            record.n, record.total = n, total
            record.at["n"], record.at["total"] = match.span("a"), match.span("b")
            in_brackets = "[" in text[max(0, match.start() - 8) : match.start()]
            record.samples = percent is not None and (total or 0) > 5000 and in_brackets
            if named is not None:
                record.split = named.name
                record.evaluation = record.split.lower() in HELD_OUT

    def _is_word(self, match: re.Match[str], named: Named) -> bool:
        """Whether a nan or inf is a word, as in "number of nan iterations"."""
        if (no_value := _NO_VALUE.search(named.name) is not None) or named.strong:
            return no_value
        stop = match.end()
        followed = self.text[stop : stop + 2].strip()[:1].isalpha() and is_sentence(self.text, stop)
        return followed or role_of(named.name) is None

    def _unnamed(self, match: re.Match[str], gap: str) -> None:
        """A number without a name: a position at the start of a row, a rate that its unit names, or nothing."""
        if gap.strip() == "|" and self.record.values and (rate := rate_of(match, self.text)) is not None:
            name, self.end = rate
            self.record.values.append(Value(name, number(match["number"]), *match.span("number")))
            self.covered += len(name)
            return
        if end := place_before_word(self.record, match, self.text, gap):
            self.covered += len("epoch")
            self.end = end
            return
        if not ((self.record.values and gap.strip() in ("", "(")) or gap.lstrip().startswith(")")):
            place_unnamed(self.record, match, self.text, gap)
            self.leftover += letters(gap)
        self.end = match.end()

    def _named(self, match: re.Match[str], gap: str, named: Named, span: tuple[int, int]) -> None:
        """A number with a name: a position or a metric."""
        record, stop = self.record, match.end()
        if "(" in gap and record.values and is_mean(named, gap, record.values[-1]):
            self.end = stop  # "loss 1.23 (avg 1.30)"
            return
        raw = self.text[span[0] : span[1]]
        if raw.isdigit() and role_of(named.name) in _SCORES and (labelled := after_label(self.text, stop, raw)):
            named = replace(named, name=f"{named.name} {raw}")
            raw, span, stop = labelled[1], labelled.span(1), labelled.end(1)
            record.once = True  # the digits of the label tell one tag from another
        if (end := value_after(record, named, raw, span, self.text)) is not None:
            self.covered += len(named.name)
            self.end = end
            return
        unit = match["unit"].strip() if match.lastgroup == "unit" else ""
        if re.match(r"[A-Za-z]++/(?:s|sec)$", unit) and (gap.rstrip().endswith("|") or named.name in TIME_UNITS):
            # "| 55.5% MFU | 173580 tok/s", "step 12.6 ms  5227 img/s"
            named = replace(named, name=unit, strong=True, leftover=0)
        where = position_before(named.name, self.text, stop) or position_of_first(record, named, raw, self.text, stop)
        if where is not None and of_the_best(record, gap):
            self.end = stop
            return
        plain = where is None or (named.name[-1:] in "sS" and gap[-1:] in "[(")  # "STEPS: [40, 70]"
        if plain and role_of(named.name) is None and (several := end_of_several(gap, raw, self.text, stop)):
            self.covered += len(named.name)
            self.leftover += named.leftover
            self.end = several
            return
        if where is not None and where[0] == "step":
            if unit in ("k", "K", "M"):  # "step 1.5k"
                raw = f"{number(raw) * SUFFIX[unit]:.0f}"
                record.once = True
            elif unit in TIME_UNITS or ("." in raw and not raw.endswith(".0") and where[1] < Trust.GLOBAL):
                where = None  # a timer: "forward: 103.30 | step: 7.03"
        if named.split:
            self.splits.append((len(record.values), named.split))
        if where is not None:
            self.covered += len(named.name)
            self.leftover += named.leftover
            place(record, where, raw, span, named.name)
            self.plural |= named.name.lower().endswith("epochs") and record.at.get("epoch") == span
            self.end = stop
        elif not ("..." in gap and raw.isdigit()):  # a listing of settings
            self.end = stop
            self._metric(gap, named, raw, span, unit)

    def _metric(self, gap: str, named: Named, raw: str, span: tuple[int, int], unit: str) -> None:
        """A number with a name that is not a position; `end` is already after it."""
        record = self.record
        if named.strong:
            self.heading = ""
        elif not raw.isdigit() and (found := OF_LOSSES.search(gap)):
            self.heading = found["word"]
            self.covered += len(self.heading)
        elif not named.clean and role_of(named.name) is None:
            self.leftover += letters(gap)
            return
        tag = "/".join((*self.path, named.name)) if self.path and named.strong else named.name
        if self.heading and role_of(tag) is None:
            tag = f"{tag} {self.heading}" if tag.lower() in SPLITS else f"{self.heading} {tag}"
        if "[" in gap and (group := _GROUP.search(gap)) and any(v.tag == tag for v in record.values):
            tag = f"{group[1]}/{tag}"  # "loss[loss=1, …], tot_loss[loss=2, …]"
        tag = with_unit(tag, unit)
        factor = SUFFIX.get(unit) if unit and role_of(tag) != "memory" else None
        value = Value(tag, number(raw), *span) if factor is None else Value(tag, number(raw) * factor)
        counts = not record.values and raw.isdigit() and _COUNTED.fullmatch(named.name) is not None
        cell = named.words <= 2 and is_cell(gap, self.text, self.end)
        if named.strong or counts or cell or (named.words <= 4 and role_of(tag) is not None):
            record.values.append(value)
            self.covered += len(named.name)
            self.leftover += named.leftover
        elif named.words <= 2 and (unit or not self.text[self.end : self.end + 1].strip().strip(",|;)]")):
            self.weak.append(len(record.values))
            record.values.append(value)
            self.covered += len(named.name)
        else:
            self.leftover += letters(gap)

    def _decide(self, demand: bool) -> Record | None:
        """The record, if the row is one of metrics."""
        record, text = self.record, self.text
        self.leftover += sum(map(str.isalpha, text[self.end : self.end + 400]))
        if self.plural and not any(role_of(v.tag) in _SCORES for v in record.values):
            record.epoch, record.epochs = None, record.epoch  # "epochs: 100", in a listing of settings
            record.at["epochs"] = record.at.pop("epoch")
        record.step = None if is_of_settings(record) else record.step
        placed = record.step is not None or record.n is not None or record.epoch is not None
        if self.weak and demand:
            self._drop_weak(placed)
        if is_listing(record, text):
            return None
        if demand and self.leftover and not OBJECT.match(text, self.start) and self._is_prose(placed):
            return reversed_row(text, self.start) or epoch_anywhere(text, self.start)
        if not record.values and not placed:
            return reversed_row(text, self.start) if demand else None
        rename_best(record)
        inherit_split(record, text)
        split_of_row(record, text, self.start)
        follow_held_out(record)
        record.evaluation |= is_of_another_pass(record)
        return record

    def _drop_weak(self, placed: bool) -> None:
        """Drop pairs without a sign unless the whole row is made of pairs and has a known quantity or a position."""
        values = self.record.values
        if self.leftover > 0 or not (placed or any(role_of(v.tag) for v in values)):
            self.covered -= sum(len(values[i].tag) for i in self.weak)
            for i in reversed(self.weak):
                del values[i]

    def _is_prose(self, placed: bool) -> bool:
        """Whether too little of the row's text names numbers."""
        if placed and ("=" in self.text or "|" in self.text):
            words = WORD_PAIRS.finditer(self.text, self.start)
            self.leftover -= sum(sum(map(str.isalpha, m[0])) for m in words)
        if placed:
            self.leftover -= letters_of_label(self.text, self.start)
            if 2 * self.covered >= self.leftover:
                return False
            scores = {role_of(v.tag) for v in self.record.values}.intersection(_SCORES)
            several = len(scores) > 1 and self.record.n is not None  # "5/100 finished …, Loss is 0.5 Acc is 0.7"
            losses = not scores.isdisjoint(("loss", "val_loss"))
            return (8 if losses and several else 3 if losses else 2) * self.covered < self.leftover
        if not any(role_of(v.tag) is not None for v in self.record.values):
            return 0.3 * self.covered < self.leftover
        heading = HEADING.match(self.text, self.start)
        if heading is not None and len(self.record.values) > 1 and self.leftover <= letters(heading[0]):
            return False
        first = self.record.values[0]
        leads = role_of(first.tag) is not None and 0 <= first.start - self.start <= len(first.tag) + 3
        if leads and self.text[first.end : first.end + 2].strip()[:1] in ("=", ",", ";", "|"):
            return False  # "loss 6.821 = 6.5 + 0.321 avg prob of [ bishop] 0.05"
        alone = len(self.record.values) == 1 and not self.text[first.end :].strip(" .")
        new_rate = alone and NEW_RATE.search(self.text, 0, first.start) is not None
        return not new_rate and 2 * self.covered < self.leftover
