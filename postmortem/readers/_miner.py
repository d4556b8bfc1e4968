"""The general miner: finds named numbers in print styles that nobody described.

One pass over the numbers of a row; the text in front of a number names it: ``key=1``, ``key: 1``, ``key 1``,
JSON and Python dicts (nested keys joined by ``/``), ``name 1.23 (1.30)``, ``12/100``, ``[3, 100]``, tables with bars.
Every pattern is anchored by what precedes it and uses possessive repeats, so a row costs time linear in its length.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from postmortem.core.roles import role_of
from postmortem.readers.dialects import GLOBAL, ITERATION, LOCAL, STEP, Record, Value

LONGEST_ROW = 65_536
"""Characters of one row that are looked at; what is behind is counted by the reader."""

_SUFFIX = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_UNIT = (
    r"%|(?:[KMGTP]i?B|GB|MB|KB|kB|ms|us|µs|ns|secs?|s|min|h|hrs?|K|k|M|B|G|T|[TGP]FLOPS|[TGP]FLOP|BPC|dB|it|steps?/s|samples?|tokens?|tok|imgs?|images?|px|x|W|C)"
    r"(?:/(?:it|s|sec|step|iter|batch|epoch|GPU|gpu|device|sample))*+|/(?:s|sec|it)"
)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})++(?!\d)(?:\.\d++)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
NONFINITE = r"[-+]?(?:[nN][aA][nN](?:\(ind\))?|[iI][nN][fF](?:inity|INITY)?|1\.#(?:INF|IND|QNAN))"
_JUNK = (
    r"\d{4}[-/]\d\d?[-/]\d\d?(?:[T _]\d\d?:\d\d(?::\d\d)?(?:[.,]\d++)?Z?)?+|\d\d?/\d\d?/\d{2,4}(?!\d)"  # dates
    r"|\d++(?::\d\d)++(?:\.\d++)?|\d++\.\d++(?:\.\w++)++|0x[0-9a-fA-F]++"  # clocks, versions and addresses, hex
    r"|\d++(?:-\d++)++(?![\w.])"
)
_TOKEN = re.compile(
    r"(?<![\w@.$\-+/\\])(?:"
    rf"(?P<junk>{_JUNK})(?![\w])"
    r"|(?P<a>\d++)(?: ?of ?|\s*+/\s*+)(?P<b>\d++|\?)(?![\w/]|\.\d)"
    rf"|(?P<nonfinite>{NONFINITE})(?:%|(?![\w/\-.]))"
    rf"|(?P<number>{NUMBER})(?:(?P<unit> ?(?:{_UNIT}))(?!\w)|(?![\w])|(?=(?:step|iter|epoch|Step|Iter|Epoch|STEP|\[)))"
    r")"
)
_PERCENT = re.compile(r"\s*+\(\s*+([\d.]++) ?%\)")
_DELIMITER = re.compile(
    r"[:=]\s?(?i:none|null|n/a|true|false|--)(?=\W)\s?"  # a value that is absent
    r"|[|,;\t\n{}\[\]<>•│┃║→]|\s{2,}|\s[-–—*]+\s|[:=]\s|[.!?]\s|^[-*>#=\s]+|(?<=\d)\)\s*|/(?=\s)|\s/|&&|=\w*+\s|[\"']\s"
)
_DRESSING = re.compile(r"(?:device|dtype|grad_fn|requires_grad)=[^,)]{0,60}|\b[\w.]{0,20}(?:tensor|Tensor|float|int|array)\w{0,3}\(")
_PLAIN = frozenset("'\"=\\")
_ABSENT = re.compile(r"[:=]\s?['\"]?(?i:none|null|n/a|nil|true|false|--)(?=\W)")
_KEY = re.compile(r"""(['"])([^'"]{1,120})\1\s*$""")
_WRAPPER = re.compile(r"(?:(?:torch\.)?(?:tensor|Tensor)|(?:np\.|numpy\.|jnp\.)?\w{0,8}(?:float|int|array|Array)\w{0,3})\($")
_NESTED = re.compile(r"""['"]([^'"]{1,80})['"]\s*:\s*\{|[{}]""")
_STOP_WORDS = {
    "and",
    "with",
    "the",
    "at",
    "a",
    "is",
    "of",
    "for",
    "in",
    "on",
    "to",
    "has",
    "was",
    "are",
    "then",
    "now",
    "current",
    "avg:",
    "=>",
    "->",
    "got",
}
_WORD = re.compile(r"[^\W\d_]")
SPLITS = {
    "train", "training", "trn", "val", "valid", "validation", "validate", "validating", "eval", "evaluation", "evaluating",
    "test", "testing", "dev", "heldout",
}  # fmt: skip
HELD_OUT = SPLITS - {"train", "training", "trn"}

POSITIONS: dict[str, tuple[str, int]] = {}
for _field, _level, _names in (
    ("step", GLOBAL,
     "global_step globalstep global_steps num_updates current_steps total_timesteps optimizer_step optimizer_steps global_iter "
     "global_iteration opt_step gstep glob_step update_step trainer_global_step training_step"),
    ("step", ITERATION, "iteration iterations iter iters itr training_iteration update updates num_iter timestep timesteps"),
    ("step", STEP, "step steps stp train_step training_steps cur_step current_step step_num episode episodes round rounds generation game"),
    ("step", LOCAL, "batch batches it i minibatch mb batch_idx batch_id b batch_index"),
    ("epoch", 0, "epoch epochs ep current_epoch cur_epoch epoch_num epoch_idx"),
    ("rank", 0, "rank local_rank global_rank worker_rank proc"),
    ("time", 0, "timestamp _timestamp ts created asctime unix_time"),
    ("", 0,
     "eta remaining remaining_time elapsed_time percentage progress total_steps max_steps max_epochs num_epochs total_epochs v_num "
     "version pid port seed world_size micro_step "
            "line lineno id job_id gpu_id device num_workers node total_iters eta_seconds percent pct date"),
):  # fmt: skip
    for _name in _names.split():
        POSITIONS[_name] = (_field, _level)
_NOT_A_POSITION = {
    "max", "total", "num", "number", "warmup", "save", "eval", "log", "logging", "per", "every", "each", "of", "n", "best", "last", "accum",
    "accumulation", "grad", "gradient", "skipped", "inner", "time", "patience", "decay", "limit", "until",
}  # fmt: skip
_WITH_A_POSITION = SPLITS | {"current", "cur", "curr", "global", "trainer", "this", "at", "after", "on", "in", "results", "result", "metrics"}
_SHORT = {"e": "epoch", "ep": "epoch", "b": "step", "s": "step", "i": "step", "it": "step"}
_EPOCH_ANYWHERE = re.compile(r"\b[Ee](?:poch|POCH)\s*[:#=]?\s*\[?\s*(\d{1,7})\s*/\s*(\d{1,7})\b")
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


@lru_cache(maxsize=65_536)
def position(name: str) -> tuple[str, int] | None:
    """What a name says about where training is: (field, trust), ("", 0) for words that are no metric, None for a metric."""
    key = re.sub(r"[^a-z0-9_]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")
    found = POSITIONS.get(key)
    if found is None and "_" in key:
        first, _, last = key.rpartition("_")
        words = set(first.split("_"))
        if last in ("epoch", "step", "iter", "iteration", "batch", "num_updates", "episode") and not words & _NOT_A_POSITION and "/" not in name:
            known = words <= _WITH_A_POSITION
            found = POSITIONS[last] if known or (" " in name and last == "epoch") else None
        elif key.endswith("num_updates"):
            found = POSITIONS["num_updates"]
        elif key.endswith("_global_step") or key == "trainer_global_step":
            found = POSITIONS["global_step"]
    return found


@dataclass(slots=True)
class _Named:
    name: str
    strong: bool
    """A sign stands between name and number, so the name is one."""
    clean: bool
    """The name fills the text since the number before."""
    words: int
    leftover: int
    """Letters between the number before and the name."""
    split: str


@lru_cache(maxsize=65_536)
def _named(gap: str) -> _Named | None:
    """The name that the text in front of a number gives it; None where that ends in none."""
    tail = gap.rstrip(" \t'\"[(")
    while match := _WRAPPER.search(tail + "("):
        tail = tail[: match.start()].rstrip(" \t'\"[(")
    if tail.endswith(("->", "=>")):
        tail, strong = tail[:-2], True
    elif tail.endswith("..."):
        tail = tail.rstrip(". ")
        strong = role_of(tail.rpartition("  ")[2]) is not None
        if not strong:
            return None
    elif tail[-1:] in ("=", ":", "≈", "~"):
        tail, strong = tail.rstrip("=:≈~ "), True
    else:
        strong = False
    tail = tail.rstrip(" \t")
    if strong and tail[-1:] in "'\"" and (key := _KEY.search(tail[-130:])):
        return _Named(key[2], True, True, 1, 0, "")
    unit = ""
    if tail.endswith(")") and (k := tail.rfind("(", -24)) > 0:
        tail, unit = tail[:k].rstrip(), (" " if tail[k - 1] == " " else "") + tail[k:]
    tail = tail[-120:]
    cut = 0
    split = ""
    for match in _DELIMITER.finditer(tail):
        if match.end() < len(tail):
            word = tail[cut : match.start()].strip("[]({ *#=-\t").lower().removesuffix(" set").removesuffix(" error").removesuffix(" results")
            if word in SPLITS:
                split = tail[cut : match.start()].strip("[]({ *#=-\t").split(" ")[0]
            cut = match.end()
    name = tail[cut:].strip().lstrip("([*#'\"-. )]:")
    words = name.split()
    while words and words[0].lower() in _STOP_WORDS:
        words.pop(0)
    while words and not strong and words[-1] in ("=", ":", "is", "of", "at"):
        words.pop()
    name = " ".join(words) + unit
    if (
        not words
        or not _PLAIN.isdisjoint(name)
        or "..." in name
        or len(words) > 6
        or not _WORD.search(name[:40])
        or name[0].isdigit()
        or name.endswith((".py", ".cpp", ".cu", ".cc", ".h"))
    ):
        return None
    told = max((m.end() for m in _ABSENT.finditer(gap)), default=0)  # "acc: None" is a pair, too
    leftover = _letters(gap[told:]) - sum(map(str.isalpha, name))
    return _Named(name, strong, leftover <= len(split), len(words), max(0, leftover - len(split)), split)


def _letters(text: str) -> int:
    """Letters of a text, without the words that Python puts around a tensor's number."""
    if "(" in text or "=" in text:
        text = _DRESSING.sub("", text)
    return sum(map(str.isalpha, text))


def mine(text: str, start: int = 0, *, demand: bool = True) -> Record | None:
    """Values and position of the row text[start:], or None where it has no named number.

    `demand` False: a dialect knows that this is a metric row, so even text that looks like a sentence counts.
    """
    if demand and _INERT.match(text):
        return None
    if len(text) > LONGEST_ROW:
        text = text[:LONGEST_ROW]
    record = Record()
    end = start
    covered = leftover = 0
    weak: list[tuple[Value, bool]] = []  # blank pairs without a known role: kept if the whole row is made of pairs
    path: list[str] = []
    nested = "{" in text
    split = ""
    fraction_free = True
    for match in _TOKEN.finditer(text, start):
        # after rejected words ("nan") the text in front may be long; no name is
        gap = text[max(end, match.start() - (200 if match["nonfinite"] else 2000)) : match.start()]
        if match.start() < end:
            continue  # inside a percentage that was taken already
        if nested and ("{" in gap or "}" in gap):
            _walk(gap, path)
        if match["junk"]:
            leftover += _letters(gap) // 2
            end = match.end()
            continue
        named = _named(gap) if gap else None
        if match["a"]:
            end = _fraction(record, match, text, named, fraction_free)
            if named is not None:
                covered += len(named.name)
                leftover += named.leftover
            fraction_free = fraction_free and record.n is None
            continue
        raw = match["nonfinite"] or match["number"]
        if match["nonfinite"] and (
            named is None
            or not (named.strong or role_of(named.name) is not None)
            or (text[match.end() : match.end() + 2].strip()[:1].isalpha() and not named.strong and _sentence(text, match.end()))
        ):
            continue  # the word, as in "number of nan iterations"
        if named is None:
            if (record.values and gap.strip() in ("", "(")) or gap.lstrip().startswith(")"):
                end = match.end()
                continue
            _unnamed(record, match, text, gap)
            leftover += _letters(gap)
            end = match.end()
            continue
        if "(" in gap and record.values and gap.lstrip().startswith("(") and ")" not in gap:
            end = match.end()  # "loss 1.23 (avg 1.30)": its mean, not a value of its own
            continue
        where = position(named.name)
        if where is not None and where[0] == "step" and "." in raw and not raw.endswith(".0") and where[1] < GLOBAL:
            where = None  # a timer: "forward: 103.30 | step: 7.03"
        span = match.span("nonfinite") if match["nonfinite"] else match.span("number")
        split = named.split or split
        if where is not None:
            covered += len(named.name)
            leftover += named.leftover
            _place(record, where, raw, span, named)
            end = match.end()
            continue
        unit = (match["unit"] or "").strip()
        if "..." in gap and raw.isdigit():
            continue  # a listing of settings
        if not named.strong and not named.clean and role_of(named.name) is None:
            leftover += _letters(gap)
            end = match.end()
            continue
        tag = "/".join((*path, named.name)) if path and named.strong else named.name
        factor = _SUFFIX.get(unit, 1.0)
        if factor != 1.0 and role_of(tag) == "memory":
            factor = 1.0
        value = Value(tag, number(raw) * factor if factor != 1.0 else number(raw), *(span if factor == 1.0 else (-1, -1)))
        end = match.end()
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
            leftover += _letters(gap)
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
    if demand and covered * (2 if placed else 1 if known else 0.3) < leftover:
        if found := _EPOCH_ANYWHERE.search(text, start):
            return Record(epoch=float(found[1]), epochs=float(found[2]), at={"epoch": found.span(1), "epochs": found.span(2)})
        return None
    if not record.values and not placed:
        return None
    _inherit_split(record, text)
    return record


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


def _fraction(record: Record, match: re.Match[str], text: str, named: _Named | None, free: bool) -> int:
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


def _unnamed(record: Record, match: re.Match[str], text: str, gap: str) -> None:
    """Numbers without a name at the start of a row: ``12) loss``, ``[3, 100] loss``, ``[3][100]``, ``0007: loss``."""
    if record.values or match["nonfinite"] or not match["number"].isdigit():
        return
    before, after = gap.strip(), text[match.end() : match.end() + 2]
    number_ = float(match["number"])
    if before == "#" and match.start() < 12:
        record.step, record.level = number_, STEP
        record.at["step"] = match.span("number")
    elif before == "" and (after[:1] in (")", ":") or after == " |"):
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


def _place(record: Record, where: tuple[str, int], raw: str, span: tuple[int, int], named: _Named) -> None:
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
    first = named.name.split(" ")[0]
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
