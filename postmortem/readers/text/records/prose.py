"""Rows that are no plain pairs of name and number: sentences, headings before pairs, names after their numbers."""

from __future__ import annotations

import re

from postmortem.core.roles import role_of
from postmortem.readers.text.records.record import Record, Trust, Value
from postmortem.readers.text.records.step_words import position
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

OBJECT = re.compile(r"""\{["'][^{}"']{1,80}["']: .*\}\s*$""")
"""A whole JSON object or dict of Python: no sentence, whatever its texts say."""
HEADING = re.compile(r"[A-Za-z][A-Za-z \-]{2,40}:\s+(?=[\w/@]{1,30}\s?[:=])")
"""What a row of pairs is about: ``Averaged stats: lr: 0.0001  loss: 0.59``."""
NEW_RATE = re.compile(
    r"(?i)[.!;] (?:(?:the )?(?:current|new|now) )?(?:lr|learning[ _-]rate)(?: is(?: now)?)? ?[=:]? ?$"
)
"""A clause with the learning rate, after a sentence that tells a change: ``Rate changed. Current lr = 0.0005``."""
_REVERSED = re.compile(rf"\s*+(?P<value>{NUMBER}|{NONFINITE}) (?P<name>[A-Za-z]{{2,12}}(?: [A-Za-z]{{2,12}}){{0,2}})$")


def reversed_row(text: str, start: int) -> Record | None:
    """Rows with names after the numbers: ``100: 1.52, 1.61 avg loss, 0.001 rate, 2.3 seconds`` (darknet)."""
    head = re.match(r"\s*+(\d{1,15})[:)]\s", text[start:])
    pairs = [_REVERSED.match(part) for part in text[start + head.end() : 2000].split(", ")] if head else []
    found = [pair for pair in pairs if pair is not None]
    names = {pair["name"] for pair in found}
    darknet = {"rate", "seconds"} <= names and bool(names & {"avg", "avg loss"})
    if head is None or len(found) < 2 or not (darknet or any(map(role_of, names))):
        return None
    renamed = {"avg": "avg loss"} if darknet else {}
    values = [Value(renamed.get(pair["name"], pair["name"]), number(pair["value"])) for pair in found]
    if darknet and (bare := re.match(rf"\s*+({NUMBER}|{NONFINITE}), ", text[start + head.end() :])):
        values.insert(0, Value("loss", number(bare[1])))  # the batch's own, before the running average
    return Record(values, step=float(head[1]), level=Trust.STEP, once=True)


_VALUE = re.compile(rf"(?:{NONFINITE}|[-+]?\d*\.\d+(?:[eE][-+]?\d+)?),?")
_PREPOSITIONS = (
    "after",
    "at",
    "before",
    "by",
    "during",
    "for",
    "from",
    "in",
    "of",
    "on",
    "over",
    "since",
    "to",
    "with",
)


def is_sentence(text: str, end: int) -> bool:
    """Whether a plain word, not another pair such as ``temp nan`` or ``temp 2.7``, follows."""
    following = text[end : end + 40].split()
    if len(following) > 1 and _VALUE.fullmatch(following[1]) and following[0].lower() not in _PREPOSITIONS:
        return False
    return bool(following) and role_of(following[0]) is None and position(following[0]) is None
