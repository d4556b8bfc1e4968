"""The name that the text in front of a number gives it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from postmortem.core.roles import role_of
from postmortem.readers.text.records.record import Value
from postmortem.readers.text.records.step_words import SPLITS, position
from postmortem.readers.text.records.tokens import TIME_UNITS, number

_DELIMITER = re.compile(
    r"[:=]\s?(?i:none|null|n/a|true|false|--)(?=\W)\s?"  # a value that is absent
    r"|[|,;\t\n{}\[\]<>•│┃║→]|\s{2,}|\s[-–—*·∙⋅]+\s|[:=]\s|(?<!avg)(?<!Avg)(?<!AVG)[.!?]\s|^[-*>#=·∙⋅\s]+|(?<=\d)\)\s*|/(?=\s)|\s/|&&|=\w*+\s|[\"']\s"
    r"|(?:±|\+/?-)\s?[\d.]++(?:[eE][-+]?\d++)?%?\s"  # a spread after a value
)
_DRESSING = re.compile(
    r"(?:device|dtype|grad_fn|requires_grad)=[^,)]{0,60}|\b[\w.]{0,20}(?:tensor|Tensor|float|int|array)\w{0,3}\("
)
_PLAIN = frozenset("'\"=\\")
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_ABSENT = re.compile(r"[:=]\s?['\"]?(?i:none|null|n/a|nil|true|false|--)(?=\W)")
_KEY = re.compile(r"""(['"])([^'"]{1,120})\1\s*$""")
_WRAPPER = re.compile(
    r"(?:(?:torch\.)?(?:tensor|Tensor)|(?:np\.|numpy\.|jnp\.)?\w{0,8}(?:float|int|array|Array)\w{0,3})\($"
)
_STOP_WORDS = {
    "and", "with", "the", "at", "a", "is", "of", "for", "in", "on", "to", "has", "was", "are", "then", "now", "current",
    "avg:", "=>", "->", "got",
}  # fmt: skip
_CODE = re.compile(r"[A-Za-z]{0,2}\d++(?:[.:]\d++)++$")
"""``E1.0100``: a position in a special notation, not a word of a name."""
_OF_A_HEADING = frozenset(("", "set", "error", "results", "metrics", "scores", "result", "performance"))
"""Words that may follow a split word in the heading of its values."""
OF_LOSSES = re.compile(r"(?i)(?:^|[\W_])(?P<word>loss(?:es)?)\s?[:=]\s?(?=[A-Za-z]\w{0,15} ?$)")
"""The heading of losses that follow without a sign: ``Losses: x 0.27, y 0.25, total 15.1``."""
_WORD = re.compile(r"[^\W\d_]")


@dataclass(slots=True)
class Named:
    """A name, and how well the text in front of a number fits it."""

    name: str
    strong: bool
    """A sign (``=``, ``:``) is between name and number."""
    clean: bool
    """The name is all the text since the previous number."""
    words: int
    leftover: int
    """Letters between the previous number and the name."""
    split: str


_WITH_VALUE = re.compile(r"(?i)(?P<name>.+?) [-+]?(?:nan|inf)(?: .*)?")


def _holds_a_value(name: str) -> bool:
    """Whether a name is a metric, its value and more words: the 3 of ``loss nan for 3 steps`` is no loss."""
    found = _WITH_VALUE.fullmatch(name)
    return found is not None and role_of(found["name"]) is not None


@lru_cache(maxsize=65_536)
def name_of(gap: str) -> Named | None:
    """The name that the text in front of a number gives it; None if the text does not end in a name."""
    tail = gap.rstrip(" \t'\"[(")
    while match := _WRAPPER.search(tail + "("):
        tail = tail[: match.start()].rstrip(" \t'\"[(")
    tail, strong = _without_sign(tail)
    if tail.endswith("..."):
        return None
    tail = tail.rstrip(" \t")
    if tail.endswith(";") and not strong:
        return None  # "20111 tok/s; 1250 sec": the unit of the number before
    if tail.endswith(" |") and not strong and tail.count("|") == 1:
        tail = tail.rstrip(" |")  # "Step 100: train loss |  0.5"
    if strong and tail[-1:] in "'\"" and (key := _KEY.search(tail[-130:])):
        return Named(key[2], True, True, 1, 0, "")
    unit = ""
    if tail.endswith(")") and (k := tail.rfind("(", -24)) > 0:
        tail, unit = tail[:k].rstrip(), (" " if tail[k - 1] == " " else "") + tail[k:]
    tail = tail[-120:]
    cut = 0
    split = ""
    for match in _DELIMITER.finditer(tail):
        if match.end() < len(tail):
            word, _, rest = tail[cut : match.start()].strip("[]({ *#=-\t").partition(" ")
            if word.lower() in SPLITS and not _ABSENT.match(match[0] + " ") and _is_heading(rest, match[0]):
                split = word
            cut = match.end()
    name = _bare(tail[cut:].strip().lstrip("([*#'\"-. )]:"), unit)
    words = name.split()
    while words and (words[0].lower() in _STOP_WORDS or (len(words) > 1 and _CODE.match(words[0]))):
        words.pop(0)
    while words and not strong and words[-1] in ("=", ":", "is", "of", "at"):
        words.pop()
    name = " ".join(words) + unit
    if (
        not words
        or not _PLAIN.isdisjoint(_APOSTROPHE.sub("", name))
        or "..." in name
        or len(words) > 6
        or not _WORD.search(name[:40])
        or name[0].isdigit()
        or (name[-1] in ",]" and not strong)
        or name.endswith((".py", ".cpp", ".cu", ".cc", ".h"))
        or (len(words) > 1 and _holds_a_value(name))
    ):
        return None
    start = max((m.end() for m in _ABSENT.finditer(gap)), default=0)  # "acc: None" is a pair, too
    leftover = letters(gap[start:]) - sum(map(str.isalpha, name))
    return Named(name, strong, leftover <= len(split), len(words), max(0, leftover - len(split)), split)


def _is_heading(rest: str, sign: str) -> bool:
    """Whether a split word and `rest`, before a `sign`, head the names that follow: ``Val``, ``Dev BLEU: BLEU-1``."""
    return rest.lower() in _OF_A_HEADING or (sign[:1] == ":" and " " not in rest and role_of(rest) is not None)


def _without_sign(tail: str) -> tuple[str, bool]:
    """A text without the sign at its end, and whether it has one. Dots after a word that is no quantity stay."""
    if tail.endswith(("->", "=>")):
        return tail[:-2], True
    if tail.endswith("..."):
        name = tail.rstrip(". ")
        return (name, True) if role_of(name.rpartition("  ")[2]) is not None else (tail, False)
    if tail[-1:] in ("=", ":", "≈", "~"):
        return tail.rstrip("=:≈~ "), True
    return tail, False


def _bare(name: str, unit: str) -> str:
    """The name without leading symbols, and only what follows an unbalanced bracket."""
    while name and not name[0].isascii() and unicodedata.category(name[0]) in ("So", "Sk", "Cf", "Mn"):
        name = name[1:].lstrip()
    excess = name.count("(") + unit.count("(") - name.count(")") - unit.count(")")
    if excess < 0:
        return name[name.find(")") + 1 :].lstrip() or name
    return name[name.rfind("(") + 1 :].lstrip() if excess > 0 else name


def letters(text: str) -> int:
    """The number of letters of a text, without the words that Python prints around the number of a tensor."""
    if "(" in text or "=" in text:
        text = _DRESSING.sub("", text)
    return sum(map(str.isalpha, text))


def is_label(gap: str) -> bool:
    """Whether the number after a ``#`` names a thing, ``output #0: accuracy``, and is no position, ``Epoch #0:``."""
    words = gap[:-1].split()
    return bool(words) and letters(gap) > 0 and position(words[-1]) is None


def is_cell(gap: str, text: str, stop: int) -> bool:
    """Whether a name and its number, which ends at `stop`, fill a cell between two bars: ``| grad 0.8 |``."""
    return gap.lstrip()[:1] == "|" and gap.count("|") == 1 and text[stop : stop + 40].lstrip()[:1] in ("|", "")


def is_part(text: str, stop: int, kind: str | None) -> bool:
    """Whether a number that ends at `stop` goes on, as one with a unit that is not known: ``10.06q``."""
    return kind == "number" and text[stop : stop + 1] == "." and text[stop + 1 : stop + 2].isdigit()


def is_mean(named: Named, gap: str, before: Value) -> bool:
    """Whether a number in brackets is of the value before it: "loss 1.2 (avg 1.3)" is, "loss 1.2 (lr 0.1)" is not."""
    if ")" in gap or not gap.lstrip().startswith("("):
        return False
    role = role_of(named.name)
    return role is None or role == role_of(before.tag)


_NUMBERED = re.compile(r" \(\d\)$")
_NO_COUNT = re.compile(r"(?i)\.|nan|inf")


def further_value(values: list[Value], text: str, gap: str, match: re.Match[str]) -> Value | None:
    """One more value of the last name: the 0.48 of ``D(G(z)): 0.52 / 0.48``, named ``D(G(z)) (2)``; the mean of
    ``loss: 44.5 (inf)``, of a value that is finite itself: one that was not printed was no number."""
    kind = "nonfinite" if match.lastgroup == "nonfinite" else "number"
    if gap.strip() not in ("(", "/") or not values or not match[kind] or (last := values[-1]).end < 0:
        return None
    start, stop = match.span(kind)
    if gap == " / ":
        shown = text[last.start : last.end]
        if last.end + len(gap) != start or not (_NO_COUNT.search(shown) and _NO_COUNT.search(match[kind])):
            return None  # "3.2 / 10": a share
        first = _NUMBERED.sub("", last.tag)
        n = sum(_NUMBERED.sub("", v.tag) == first for v in values) + 1
        return Value(f"{first} ({n})", number(match[kind]), start, stop)
    if kind == "number" or gap.strip() != "(" or text[match.end() : match.end() + 1] != ")":
        return None
    if not isfinite(last.number) or role_of(last.tag) is None:
        return None
    return Value(f"{last.tag} (mean)", number(match[kind]), start, stop)


_MILLISECONDS = re.compile(r"(?i)(?:^|[\W_])ms(?:$|[\W_])")


def with_unit(tag: str, unit: str) -> str:
    """The tag with the unit of its numbers, where that tells what they are.

    ``fetch 0.2 ms`` (a time without a unit in its name is taken as seconds), ``Speed: 2011.2 samples/sec``, and
    ``cost: 0.27 min``, which is no loss.
    """
    if unit == "ms" and role_of(tag) == "data_time" and not _MILLISECONDS.search(tag):
        return f"{tag} ms"
    is_time = unit in TIME_UNITS and role_of(tag) == "loss" and "loss" not in tag.lower()
    return f"{tag} ({unit})" if is_time or ("/" in unit and tag.lower().endswith("speed")) else tag
