"""What in a row looks like a number: the patterns of numbers and their units, and how a printed number is read."""

from __future__ import annotations

import re

from postmortem.core.roles import role_of

LONGEST_ROW = 65_536
"""Characters of one row that are read. The reader counts the rows that are longer."""

SUFFIX = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
"""Units that multiply the number in front of them."""
TIME_UNITS = {"ms", "us", "µs", "ns", "s", "sec", "secs", "m", "min", "mins", "h", "hr", "hrs"}
_UNIT = (
    r"%|(?:[KMGTP]i?B|GB|MB|KB|kB|ms|us|µs|ns|secs?|s|mins?|m|h|hrs?|K|k|M|B|G|T|[TGP]FLOPS|[TGP]FLOP|BPC|dB"
    r"|it|steps?/s|samples?|tokens?|tok|imgs?|images?|px|x|W|C)"
    r"(?:/(?:it(?!e)|sec|step|sample|s|iter|batch|epoch|GPU|gpu|device))*+|/(?:sec|s|it)"
)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3}){1,6}+(?!\d)(?:\.\d++)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
NONFINITE = r"[-+]?(?:[nN][aA][nN](?:\(ind\))?|[iI][nN][fF](?:inity|INITY)?|1\.#(?:INF|IND|QNAN))"
_JUNK = (
    r"\d{4}[-/]\d\d?[-/]\d\d?(?:[T _]\d\d?:\d\d(?::\d\d)?(?:[.,]\d++)?Z?)?+|\d\d?/\d\d?/\d{2,4}(?!\d)"  # dates
    r"|\d\d?h\d\d(?:[:m]\d\ds?)?"  # French clocks
    r"|\d++(?::\d\d)++(?:\.\d++)?|\d++\.\d++(?:\.\w++)++|0x[0-9a-fA-F]++"  # clocks, versions, addresses, hexadecimals
    r"|\d++(?:-\d++)++(?![\w.])"
)
_HOURS, _MINUTES = r"h(?:ours?|rs?)?", r"m(?:in(?:ute)?s?)?"
_DURATION = (
    rf"\d++ ?(?:d(?:ays?)?|{_HOURS}|{_MINUTES}),?(?: ?\d\d? ?(?:{_HOURS}|{_MINUTES}),?){{0,2}}"
    rf" ?\d\d?(?:\.\d++)? ?(?:{_HOURS}|{_MINUTES}|s(?:ec(?:ond)?s?)?)(?![\w/])"
)
"""``1h 03m 51s``, ``1d 13h 15m``."""


def _tokens(word: str) -> re.Pattern[str]:
    """Pattern of numbers that are not part of a word; `word` is the class of characters that words are made of.

    The last group that matched (`re.Match.lastgroup`) names the kind: "duration" (of several units), "junk"
    (dates, clocks, versions), "b" (a fraction a/b), "nonfinite", "unit" (a number with its unit) or "number".
    """
    unit = rf"(?=[%/\w])(?:{_UNIT})(?!\w)| (?=[%/A-Za-zµ])(?:{_UNIT})(?!\w)(?!\s*+[\d:=])"
    return re.compile(
        rf"(?:(?<![{word}@.$\-+/\\])|(?<=^[Ee]poch)|(?<=[\s\[(|,;*=#][Ee]poch))(?:"  # "Epoch3: loss 0.5"
        rf"(?P<duration>{_DURATION})|(?P<junk>{_JUNK})(?![{word}])"
        rf"|(?P<a>\d++)(?: ?of ?|\s*+/\s*+)(?P<b>\d++|\?)(?![{word}/]|\.\d)"
        rf"|(?P<nonfinite>{NONFINITE})(?:%|\.0(?![{word}.])|(?![{word}/\-.]))"
        rf"|(?P<number>{NUMBER})"
        rf"(?:(?P<unit>{unit})|(?![{word}]|\.\d)|(?=[A-Za-zσ]{{1,3}}\))|(?=(?:step|iter|epoch|Step|Iter|Epoch|STEP|\[)))"
        r")"
    )


TOKEN, TOKEN_CJK = _tokens(r"\w"), _tokens("A-Za-z0-9_")
"""Numbers of a row. The second is for East Asian texts, whose words touch their numbers."""

WORD_PAIRS = re.compile(
    r"""\b[A-Za-z_][\w.]{0,60}(?:=(?:"[^"]{0,300}"|'[^']{0,300}'|[A-Za-z][\w./:@\-]{0,120})"""
    r"""|: [A-Za-z][\w./@\-]{0,120}(?= ?\|))"""
)
"""key=word pairs, as in logfmt, and ``key: word |``."""
_COUNTER = r"(?:[Ee]poch|EPOCH|[Ii]ter(?:ation)?|[Ss]tep|[Rr]ound|[Ee]pisode)"
_JOINED = re.compile(r"(?<![\w./\\])([Ee]poch|EPOCH|[Ii]ter(?:ation)?|[Ss]tep)[._\-](?=\d{1,12}(?:[\s:,|\])/]|$))")
_FILLED = re.compile(
    rf" (?:[Nn]o|[Nn]r|[Nn]um|[Nn]umber|[Ii]ndex|[Ii]dx)\.?(?= ?[:=#]? ?\d)"
    rf"| (?:of|OF)(?: the)?(?= {_COUNTER}\b)"
    rf"|(?:st|nd|rd|th)\b(?<=\d..)(?: {_COUNTER}\b)?"
)
"""Words between a counter and its number, the end of an ordinal: ``Epoch no. 3``, ``End of epoch 3``, ``step: 3th``."""
_PRINTED = re.compile(r"(?P<name>[A-Za-z][\w ]{0,40}), (?=-?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?$)")
"""A name and nothing but its number: ``lr, 0.00097``."""
_BEFORE_WORD = re.compile(rf"\b(?:{_COUNTER}|[Ee]nd|END|[Bb]eginning)$")
_BEFORE_ORDINAL = re.compile(rf"\b{_COUNTER}\s?[:=#]?\s?\d{{1,12}}$")


def _blanked(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 30) : match.start()]
    follows = _BEFORE_WORD if match[0].startswith(" ") else _BEFORE_ORDINAL
    return " " * len(match[0]) if follows.search(before) else match[0]


_IN_EPOCH = re.compile(r"(?<=\d\]\[)([ \d]{0,8}\d):(?=\d{1,9}\])")
"""Between the batch and the number of batches, behind the epoch: ``[Epoch 3/500][  40:391]``."""
_SHARE_OF = re.compile(r"(?i)(?<![\w.])(?:percent|progress|completed)\s?:\s?(?=\[\s{0,8}\d{1,12}/\d{1,12}\s\(\d)")
"""A word before the position in an epoch, which stands as MNIST's example prints it: ``Percent:[640/6751 (9%)]``."""
_WINDOW = re.compile(
    r"(?i)(?<=[a-z])\s{0,2}(?:[(\[] ?)?(?:(?:averaged |avg |mean )?(?:over|across) (?:the )?"
    r"(?:(?:last|past|previous) )?"
    r"|(?:(?:of|for|in|from|during) (?:the )?)?(?:last|past|previous) )\d[\d,]{0,9} "
    r"(?:(?:training|mini)[ -]?)?(?:steps|iters|iterations|batches|updates|episodes|games|epochs|samples|rollouts)"
    r"(?: ?[)\]])?\s{0,3}(?P<sign>[:=]?)(?=\s{0,4}[-+]?(?:\.?\d|nan\b|inf\b))"
)
"""Of how many steps a value is the mean: ``avg loss over last 50 steps: 0.31``, ``reward (last 100 episodes): 12``."""


def _without_window(match: re.Match[str]) -> str:
    return (match["sign"] or ":").ljust(len(match[0]))


def apart(text: str) -> str:
    """The text with blanks between a word and its number: ``Epoch.3 Train loss``, ``step-100:``, ``Epoch no. 3``, and
    in the place of the steps that a mean is of. Nothing moves."""
    if "last " in text or "over " in text or "past " in text or "across " in text or "previous " in text:
        text = _WINDOW.sub(_without_window, text)
    if "." in text or "-" in text or "_" in text:
        text = _JOINED.sub(r"\1 ", text)
    if "][" in text:
        text = _IN_EPOCH.sub(r"\1/", text)
    if "%)]" in text:
        text = _SHARE_OF.sub(lambda match: " " * len(match[0]), text)
    if (printed := _PRINTED.match(text)) and role_of(printed["name"]):
        text = f"{printed['name']}: {text[printed.end() :]}"
    return _FILLED.sub(_blanked, text)


_AFTER_LABEL = re.compile(rf"[ \t]{{1,8}}+(\d++\.\d++)(?![\w.])([ \t]{{1,8}}+\([ \t]{{0,8}}+{NUMBER}\))?")


def after_label(text: str, stop: int, label: str) -> re.Match[str] | None:
    """The value after a whole number, which ends at `stop`, if that belongs to the name: ``Prec@1  05 50.742 (49.1)``.

    It does if it begins with a zero, or if a value with its mean in parentheses follows. Group 1 is the value, group 2
    its mean.
    """
    found = _AFTER_LABEL.match(text, stop)
    return found if found and (found[2] or label[0] == "0") else None


_RATE = re.compile(r"(?: ?(?P<per>(?:tok(?:en)?s?|samples?|im(?:g|age)s?|seqs?|steps?|it)/s(?:ec)?))(?![\w/])")


def rate_of(match: re.Match[str], text: str) -> tuple[str, int] | None:
    """The rate that the unit of a number names, and where the unit ends: ``1250 img/s``, ``37.5k tok/s``.

    The name keeps the letter of the thousands: numbers stay as printed.
    """
    thousands = match["unit"] if match["unit"] in SUFFIX else ""
    found = _RATE.match(text, match.end() if thousands else match.end("number")) if match["number"] else None
    return (f"{thousands} {found['per']}".strip(), found.end()) if found else None


_NEXT = re.compile(r"\s*+,|\s++[-+\d.]")
_TO_BRACKET = re.compile(r"[^()\[\]]{0,1000}+[)\]]")
_TIMES_SIGN = re.compile(r"(?: ?[x×] ?\d++)++")


def end_of_several(gap: str, raw: str, text: str, stop: int) -> int:
    """Where a list in brackets or a shape such as ``224 x 224`` ends whose first number ends at `stop`; else 0."""
    if gap.rstrip()[-1:] in ("(", "[") and ("," in raw or _NEXT.match(text, stop)):
        found = _TO_BRACKET.match(text, stop)
        return found.end() if found else stop
    found = _TIMES_SIGN.match(text, stop)
    return found.end() if found else 0


def number(text: str) -> float:
    """Read a printed number: thousands separators, ``1.#INF``, ``-nan(ind)`` and all spellings of nan and inf.

    Raises ValueError if the text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        low = text.lower().replace(",", "")
        sign = -1.0 if low.startswith("-") else 1.0
        if "#inf" in low:
            return sign * float("inf")
        if "nan" in low or "#" in low:
            return float("nan")
        return float(low)
