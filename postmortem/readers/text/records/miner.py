"""The general miner: finds named numbers in print styles that nobody described.

One pass over the numbers of a row; the text in front of a number names it: ``key=1``, ``key: 1``, ``key 1``,
JSON and Python dicts (nested keys joined by ``/``), ``name 1.23 (1.30)``, ``12/100``, ``[3, 100]``, tables with bars.
Every pattern is anchored by what precedes it and uses possessive repeats, so a row costs time linear in its length.
"""

from __future__ import annotations

import re
from collections import Counter

from postmortem.core.roles import role_of
from postmortem.readers.text.records.names import Named, letters, name_of
from postmortem.readers.text.records.record import GLOBAL, LOCAL, STEP, Record, Value
from postmortem.readers.text.records.step_words import HELD_OUT, POSITIONS, SPLITS, position

LONGEST_ROW = 65_536
"""Characters of one row that are looked at; what is behind is counted by the reader."""

_SUFFIX = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_UNIT = (
    r"%|(?:[KMGTP]i?B|GB|MB|KB|kB|ms|us|µs|ns|secs?|s|min|h|hrs?|K|k|M|B|G|T|[TGP]FLOPS|[TGP]FLOP|BPC|dB|it|steps?/s|samples?|tokens?|tok|imgs?|images?|px|x|W|C)"
    r"(?:/(?:it|s|sec|step|iter|batch|epoch|GPU|gpu|device|sample))*+|/(?:s|sec|it)"
)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3}){1,6}+(?!\d)(?:\.\d++)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
NONFINITE = r"[-+]?(?:[nN][aA][nN](?:\(ind\))?|[iI][nN][fF](?:inity|INITY)?|1\.#(?:INF|IND|QNAN))"
_JUNK = (
    r"\d{4}[-/]\d\d?[-/]\d\d?(?:[T _]\d\d?:\d\d(?::\d\d)?(?:[.,]\d++)?Z?)?+|\d\d?/\d\d?/\d{2,4}(?!\d)"  # dates
    r"|\d++(?::\d\d)++(?:\.\d++)?|\d++\.\d++(?:\.\w++)++|0x[0-9a-fA-F]++"  # clocks, versions and addresses, hex
    r"|\d++(?:-\d++)++(?![\w.])"
)


def _tokens(word: str) -> re.Pattern[str]:
    """Numbers that are no part of a word; `word` is a class of characters."""
    return re.compile(
        rf"(?<![{word}@.$\-+/\\])(?:"
        rf"(?P<junk>{_JUNK})(?![{word}])"
        rf"|(?P<a>\d++)(?: ?of ?|\s*+/\s*+)(?P<b>\d++|\?)(?![{word}/]|\.\d)"
        rf"|(?P<nonfinite>{NONFINITE})(?:%|(?![{word}/\-.]))"
        rf"|(?P<number>{NUMBER})(?:(?P<unit>(?=[%/\w])(?:{_UNIT})(?!\w)| (?=[%/A-Za-zµ])(?:{_UNIT})(?!\w)(?!\s*+[\d:=]))"
        rf"|(?![{word}])|(?=(?:step|iter|epoch|Step|Iter|Epoch|STEP|\[)))"
        r")"
    )


_TOKEN, _TOKEN_CJK = _tokens(r"\w"), _tokens("A-Za-z0-9_")
_CJK = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af\uff00-\uff60]")
_NARROW = {0xFF1A: ":", 0xFF0C: ",", 0xFF1D: "=", 0xFF08: "(", 0xFF09: ")", 0xFF05: "%", 0x3000: " "}
"""Wide punctuation of East Asian texts, sign for sign."""
_ORDINAL = re.compile(r"\s*+(?:个)?(?:(?P<epoch>轮|[Ee]poch)|(?P<step>步|次迭代|[Ss]tep))")
_PERCENT = re.compile(r"\s*+\(\s*+([\d.]++) ?%\)")
_GROUP = re.compile(r"(\w{1,60})\[\s*+[\w./@\-]{1,80}\s*+[=:]\s*+$")
_BRACKETED = re.compile(r"^(?:\[[A-Za-z_ ]{1,40}\]\s?)+")
_NEXT = re.compile(r"\s*+,|\s++[-+\d.]")
_TO_BRACKET = re.compile(r"[^()\[\]]{0,1000}+[)\]]")
_TIMES_SIGN = re.compile(r"(?: ?[x×] ?\d++)++")
_TIMES = {"ms", "us", "µs", "ns", "s", "sec", "secs", "min", "h", "hr", "hrs"}
_WORDS = re.compile(r"""\b[A-Za-z_][\w.]{0,60}=(?:"[^"]{0,300}"|'[^']{0,300}'|[A-Za-z][\w./:@\-]{0,120})""")
"""Pairs with a word for a value, as logfmt writes them."""
_REVERSED = re.compile(rf"\s*+(?P<value>{NUMBER}|{NONFINITE}) (?P<name>[A-Za-z]{{2,12}}(?: [A-Za-z]{{2,12}}){{0,2}})$")
_NESTED = re.compile(r"""['"]([^'"]{1,80})['"]\s*:\s*\{|[{}]""")
_SHORT = {"e": "epoch", "ep": "epoch", "b": "step", "s": "step", "i": "step", "it": "step"}
_EPOCH_ANYWHERE = re.compile(r"\b[Ee](?:poch|POCH)\s{0,4}[:#=]?\s{0,4}\[?\s{0,4}(\d{1,7})\s{0,4}/\s{0,4}(\d{1,7})\b")
_INERT = re.compile(
    r"\s*+(?:File \"|Traceback|wandb: |\^|warnings?\.warn|During handling|raise |The above exception"
    r"|[\w.]{0,80}(?:Error|Exception|Warning|Interrupt)\b|\S{1,200}\.py:\d+: \w*Warning)"
)


def number(text: str) -> float:
    """A printed number as float: thousands separators, ``1.#INF``, ``-nan(ind)`` and all spellings of nan and inf."""
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


def mine(text: str, start: int = 0, *, demand: bool = True) -> Record | None:
    """Values and position of the row text[start:], or None where it has no named number.

    `demand` False: a dialect knows that this is a metric row, so even text that looks like a sentence counts.
    """
    if demand and _INERT.match(text):
        return None
    if len(text) > LONGEST_ROW:
        text = text[:LONGEST_ROW]
    token = _TOKEN
    if not text.isascii() and _CJK.search(text):
        text, token = text.translate(_NARROW), _TOKEN_CJK
    record = Record()
    end = start
    covered = leftover = 0
    weak: list[tuple[Value, bool]] = []  # blank pairs without a known role: kept if the whole row is made of pairs
    path: list[str] = []
    nested = "{" in text
    split = ""
    fraction_free = True
    opening = False
    """Whether the position stands in brackets at the beginning of the row."""
    for match in token.finditer(text, start):
        begin, stop = match.span()
        if begin < end:
            continue  # inside a percentage that was taken already
        kind = match.lastgroup
        # after rejected words ("nan") the text in front may be long; no name is
        gap = text[max(end, begin - (200 if kind == "nonfinite" else 2000)) : begin]
        if nested and ("{" in gap or "}" in gap):
            _walk(gap, path)
        if kind == "junk" or (gap[-1:] == "#" and text.startswith(":", stop) and letters(gap)):  # "output #0: accuracy = 0.9"
            leftover += letters(gap) // 2
            end = stop
            continue
        if token is not _TOKEN and gap.rstrip().endswith("第") and (ordinal := _ORDINAL.match(text, stop)):
            _place(record, POSITIONS["epoch" if ordinal["epoch"] else "step"], match["number"] or "", match.span("number"), "")
            end = ordinal.end()
            continue
        named = name_of(gap) if gap else None
        if kind == "b":
            bracketed = gap.strip() == "("
            if bracketed and record.values:
                end = stop  # "Acc: 50.0% (155/310)": what the share was made of
                continue
            end = stop if gap.strip() == "][" and _in_epoch(record, match) else _fraction(record, match, text, named, fraction_free)
            if named is not None:
                covered += len(named.name)
                leftover += named.leftover
            opening = opening or (bracketed and fraction_free and record.n is not None and text.startswith(")", end))
            fraction_free = fraction_free and record.n is None
            continue
        span = match.span("nonfinite" if kind == "nonfinite" else "number")
        raw = text[span[0] : span[1]]
        if kind == "nonfinite" and (
            named is None
            or not (named.strong or role_of(named.name) is not None)
            or (text[stop : stop + 2].strip()[:1].isalpha() and not named.strong and _sentence(text, stop))
        ):
            continue  # the word, as in "number of nan iterations"
        if named is None:
            if not ((record.values and gap.strip() in ("", "(")) or gap.lstrip().startswith(")")):
                _unnamed(record, match, text, gap)
                leftover += letters(gap)
            end = stop
            continue
        if "(" in gap and record.values and gap.lstrip().startswith("(") and ")" not in gap and _same_quantity(named.name, record.values[-1].tag):
            end = stop  # "loss 1.23 (avg 1.30)": its mean, not a value of its own
            continue
        unit = match["unit"].strip() if kind == "unit" else ""
        where = position(named.name)
        if where is None and role_of(named.name) is None and (several := _several(gap, raw, text, stop)):
            covered += len(named.name)
            leftover += named.leftover
            end = several
            continue
        if where is not None and where[0] == "step":
            if unit in ("k", "K", "M"):  # "step 1.5k"
                raw = f"{number(raw) * _SUFFIX[unit]:.0f}"
                record.once = True
            elif unit in _TIMES or ("." in raw and not raw.endswith(".0") and where[1] < GLOBAL):
                where = None  # a timer: "forward: 103.30 | step: 7.03"
        split = named.split or split
        if where is not None:
            covered += len(named.name)
            leftover += named.leftover
            _place(record, where, raw, span, named.name)
            end = stop
            continue
        if "..." in gap and raw.isdigit():
            continue  # a listing of settings
        if not named.strong and not named.clean and role_of(named.name) is None:
            leftover += letters(gap)
            end = stop
            continue
        tag = "/".join((*path, named.name)) if path and named.strong else named.name
        if "[" in gap and (group := _GROUP.search(gap)) and any(v.tag == tag for v in record.values):
            tag = f"{group[1]}/{tag}"  # "loss[loss=1, …], tot_loss[loss=2, …]"
        factor = _SUFFIX.get(unit, 1.0)
        if factor != 1.0 and role_of(tag) == "memory":
            factor = 1.0
        value = Value(tag, number(raw) * factor if factor != 1.0 else number(raw), *(span if factor == 1.0 else (-1, -1)))
        end = stop
        follows = text[end : end + 1]
        if named.strong or (role_of(tag) is not None and named.words <= 4):
            record.values.append(value)
            covered += len(named.name)
            leftover += named.leftover
        elif named.words <= 2 and (not follows.strip() or follows in ",|;)]" or unit):
            weak.append((value, len(text[end : end + 2].strip()) == 0 or follows in ",|;\t"))
            covered += len(named.name)
            record.values.append(value)
        else:
            leftover += letters(gap)
    if record.n is not None and opening and record.step is not None:
        record.rank, record.n, record.total = int(record.n), None, None  # "(0/4) Epoch 1, batch 50": of so many ranks
        record.at["rank"] = record.at.pop("n")
        record.at.pop("total", None)
    if record.split == "":
        record.split = split
    leftover += sum(map(str.isalpha, text[end : end + 400]))
    placed = record.step is not None or record.n is not None or record.epoch is not None
    if weak and demand:
        loose = leftover > 0 or not (placed or any(role_of(v.tag) for v in record.values))
        if loose:
            drop = {id(v) for v, _ in weak}
            covered -= sum(len(v.tag) for v, _ in weak)
            record.values = [v for v in record.values if id(v) not in drop]
    if len(record.values) > 8 and max(Counter(v.tag for v in record.values).values()) > 2:
        return None  # a dump of many results, one after the other
    known = placed or any(role_of(v.tag) is not None for v in record.values)
    if demand and placed and leftover and "=" in text:
        leftover -= sum(sum(map(str.isalpha, m[0])) for m in _WORDS.finditer(text, start))
    if demand and covered * (2 if placed else 1 if known else 0.3) < leftover:
        if (found_reversed := _reversed(text, start)) is not None:
            return found_reversed
        if found := _EPOCH_ANYWHERE.search(text, start):
            return Record(epoch=float(found[1]), epochs=float(found[2]), at={"epoch": found.span(1), "epochs": found.span(2)})
        return None
    if not record.values and not placed:
        return _reversed(text, start) if demand else None
    _inherit_split(record, text)
    return record


def _several(gap: str, raw: str, text: str, stop: int) -> int:
    """Where the numbers in brackets end of which the first ends at `stop`, or a shape such as ``224 x 224``; 0 where it is one number."""
    if gap.rstrip()[-1:] in ("(", "[") and ("," in raw or _NEXT.match(text, stop)):
        found = _TO_BRACKET.match(text, stop)
        return found.end() if found else stop
    found = _TIMES_SIGN.match(text, stop)
    return found.end() if found else 0


def _reversed(text: str, start: int) -> Record | None:
    """Rows with the names behind the numbers: ``100: 1.52, 1.61 avg loss, 0.001 rate, 2.3 seconds`` (darknet)."""
    head = re.match(r"\s*+(\d{1,15})[:)]\s", text[start:])
    pairs = [_REVERSED.match(part) for part in text[start + head.end() : 2000].split(", ")] if head else []
    found = [pair for pair in pairs if pair is not None]
    if head is None or len(found) < 2 or not any(role_of(pair["name"]) for pair in found):
        return None
    values = [Value(pair["name"], number(pair["value"])) for pair in found]
    return Record(values, step=float(head[1]), level=STEP, once=True)


def _same_quantity(name: str, before: str) -> bool:
    """Whether a name in brackets means the value before it: "loss 1.2 (avg 1.3)" does, "loss 1.2 (lr 0.1)" does not."""
    role = role_of(name)
    return role is None or role == role_of(before)


def _sentence(text: str, end: int) -> bool:
    """Whether a plain word, not another pair, follows."""
    following = text[end : end + 40].split()
    return bool(following) and role_of(following[0]) is None and position(following[0]) is None


def _walk(gap: str, path: list[str]) -> None:
    for match in _NESTED.finditer(gap[-4000:]):
        if match[1] is not None:
            path.append(match[1])
        elif match[0] == "}" and path:
            path.pop()


def _fraction(record: Record, match: re.Match[str], text: str, named: Named | None, free: bool) -> int:
    """Takes ``12/100``: an epoch, a step of a known total, a position, or a count of hits -> where to go on."""
    n, total = float(match["a"]), float(match["b"]) if match["b"] != "?" else None
    percent = _PERCENT.match(text, match.end())
    end = percent.end() if percent else match.end()
    where = position(named.name) if named is not None else None
    if named is not None and named.name.lower() in _SHORT and not named.strong:
        where = (_SHORT[named.name.lower()], LOCAL)
    if where is not None and named is not None:
        kind, level = where
        if kind == "epoch":
            record.epoch, record.epochs = n, total
            record.at["epoch"], record.at["epochs"] = match.span("a"), match.span("b")
        elif kind == "step" and level >= record.level:
            record.n, record.total, record.level = n, total, level
            record.at["n"], record.at["total"] = match.span("a"), match.span("b")
        return end
    if named is not None and role_of(named.name) in ("accuracy", "val_accuracy"):
        value = float(percent[1]) if percent else n / total if total else n
        record.once = True
        record.values.append(Value(named.name, value))
        return end
    if (
        free
        and record.n is None
        and (named is None or named.split or named.name.lower() in SPLITS or (not named.strong and named.name.lower().rstrip(":") in SPLITS))
    ):
        record.n, record.total = n, total
        record.at["n"], record.at["total"] = match.span("a"), match.span("b")
        record.samples = percent is not None and (total or 0) > 5000 and "[" in text[max(0, match.start() - 8) : match.start()]
        if named is not None:
            record.split = named.name
            record.evaluation = record.split.lower() in HELD_OUT
    return end


def _in_epoch(record: Record, match: re.Match[str]) -> bool:
    """Takes the second of ``[3][50/100]`` or ``[3/25][50/100]`` for the position in the epoch that the first one names."""
    if record.epoch is not None or (record.n is None and (record.step is None or record.level != LOCAL)):
        return False
    if record.n is not None:
        record.epoch, record.epochs = record.n, record.total
        record.at = {"epoch": record.at["n"]} | ({"epochs": record.at["total"]} if "total" in record.at else {})
    else:
        record.epoch, record.step, record.level = record.step, None, 0
        record.at = {"epoch": record.at["step"]}
    record.n, record.total = float(match["a"]), float(match["b"]) if match["b"] != "?" else None
    record.at |= {"n": match.span("a"), "total": match.span("b")}
    return True


def _unnamed(record: Record, match: re.Match[str], text: str, gap: str) -> None:
    """Numbers without a name at the start of a row: ``12) loss``, ``[3, 100] loss``, ``[3][100]``, ``0007: loss``."""
    if record.values or match["nonfinite"] or not match["number"].isdigit():
        return
    before, after = _BRACKETED.sub("", gap.strip()), text[match.end() : match.end() + 2]
    number_ = float(match["number"])
    if before == "#" and match.start() < 12:
        record.step, record.level = number_, STEP
        record.at["step"] = match.span("number")
    elif (before == "" and after[:1] in (")", ":")) or (before in ("", "[") and after == " |"):  # "[100 | 123.45] loss=2.3"
        record.step, record.level = number_, LOCAL
        record.at["step"] = match.span("number")
    elif before == "[" and record.epoch is None and after[:1] == ",":
        record.epoch = number_
        record.at["epoch"] = match.span("number")
    elif before == "," and after[:1] == "]" and record.epoch is not None and record.n is None:
        record.n, record.level = number_, LOCAL
        record.at["n"] = match.span("number")
    elif before == "[" and after[:1] == "]" and record.step is None:
        record.step, record.level = number_, LOCAL
        record.at["step"] = match.span("number")
    elif before == "][" and after[:1] == "]" and record.step is not None and record.level == LOCAL:
        record.epoch, record.n, record.step = record.step, number_, None
        record.at["epoch"], record.at["n"] = record.at.pop("step"), match.span("number")


def _place(record: Record, where: tuple[str, int], raw: str, span: tuple[int, int], name: str) -> None:
    kind, level = where
    value = number(raw)
    if value != value or abs(value) == float("inf"):
        return
    if kind == "epoch":
        if record.epoch is None:
            record.epoch = value
            record.at["epoch"] = span
    elif kind == "rank":
        record.rank = int(value)
        record.at["rank"] = span
    elif kind == "time":
        record.wall_time = value if value > 1e8 else None
    elif kind == "step" and level > record.level and "e" not in raw.lower() and value == int(value):
        record.step, record.level = value, level
        record.at["step"] = span
    first = name.split(" ")[0]
    if kind in ("step", "epoch") and first.lower() in HELD_OUT:
        record.split = first


def _inherit_split(record: Record, text: str) -> None:
    """``train Loss: 0.8 Acc: 0.6``: a split word in front of the first name holds for the next ones too."""
    split, seen = "", set()
    for i, value in enumerate(record.values):
        first, _, rest = value.tag.partition(" ")
        if first.lower() in SPLITS and rest:
            split = first
        elif split and value.start >= 0:
            between = text[max(0, value.start - len(value.tag) - 6) : value.start]
            role = role_of(value.tag)
            if role in ("loss", "accuracy", "perplexity", "reward", None) and (
                value.tag in seen or not re.search(r"[|,;\-\t]", between.replace(value.tag, ""))
            ):
                record.values[i] = value._replace(tag=f"{split} {value.tag}")
        seen.add(value.tag)
