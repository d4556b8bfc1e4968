"""Where a training is, as a row prints it: takes its counters into a `Record`."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from postmortem.core.patterns import later
from postmortem.core.roles import role_of
from postmortem.readers.text.records.record import Record, Trust, Value
from postmortem.readers.text.records.step_words import HELD_OUT, POSITIONS, SPLITS, position
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

if TYPE_CHECKING:
    from postmortem.readers.text.records.names import Named

_ABBREVIATED = {"e": "epoch", "ep": "epoch", "b": "step", "s": "step", "i": "step", "it": "step"}
_SCORED = re.compile(r"\s++(?P<name>[A-Za-z][\w/]{0,60}) ?[=:]\s?[-+\d.nNiI]")
_IN_BRACKETS = re.compile(r"\s{1,4}\[(?P<name>[A-Za-z][\w/]{0,40}(?: [A-Za-z]\w{0,40})?) ?[=:]\s?[-+\d.nNiI]")
"""``5000 [D loss: 0.69, acc.: 56.2%] [G loss: 1.28]``."""
_PRINTED = re.compile(r"\s*+[|:,\-]?\s*+(?P<name>[A-Za-z][\w/]{0,60})(?: ?[=:]\s?| )(?:[-+]?\.?\d|nan\b|-?inf\b)")
_AFTER_A_COUNT = (_SCORED, _IN_BRACKETS)
_ORDINAL_HEAD = re.compile(
    r"\s*+(?:The )?(?P<n>\d{1,9})(?:st|nd|rd|th)[ \-](?P<what>(?i:epoch|step|iteration|round))\b"
)
_COUNT_HEAD = re.compile(r"\s*+(?i:after) (?P<n>\d{1,12}) (?P<what>(?i:epochs|steps|iterations|updates))\s?(?=[:,]|$)")
_EPOCH_LABEL = re.compile(r"\s*+\[[Ee]p?(?P<n>\d{1,6})\]\s")
"""``[E3] step 20 loss 1.4``."""
_GLUED_HEAD = re.compile(
    r"\s*+\[?(?P<what>(?i:e|ep|epoch|it|iter|iteration|step))(?P<a>\d{1,9})(?:/(?P<b>\d{1,9}))?(?![\w.])\]?"
)
"""``E100/500 | Loss: 0.1``, ``iter100: loss 0.3``: a number with as many digits as its place has leaves no blank."""
_RULED = re.compile(r"\s*+[-=*#~]{3,80}+ ?(?P<n>\d{1,6}) ?[-=*#~]{3,80}+\s*+$")
"""A heading of nothing but a number between two rules: ``-----40------``."""
_CLOSING = {"<": ">", "(": ")", "": ">"}
"""How a number in brackets at the start of a row ends, by how it begins."""
_EPOCH_ANYWHERE = re.compile(r"\b[Ee](?:poch|POCH)\s{0,4}[:#=]?\s{0,4}\[?\s{0,4}(\d{1,7})\s{0,4}/\s{0,4}(\d{1,7})\b")
_EPOCH_AHEAD = re.compile(r"(?i)[ ,|]{1,4}+epo?ch ?[:=] ?\d")
_EPOCH_AFTER = re.compile(r" [Ee]poch\b(?!\s{0,3}[:=#\[(]{0,2}\s{0,2}\d)")
"""After the number of an epoch: ``5/100 in 0 epoch``; what follows is no other number of it."""
_PAIR = re.compile(r"(?:\s*+,\s*+|\s{1,4}:\s{0,8}|:\s{1,8})\d++\s*+\](?!\s*+[\],])")
"""What follows the epoch of ``[3, 100] loss: 1.2`` and of ``[2 :  8900] loss: 1.2``; the row of a matrix is longer, or
goes on with a comma."""
_ENTRY = re.compile(r":\s++\d++,?\s*+$")
_SUCCESS = re.compile(r"(?i)loss|acc|ppl|perplexity|reward")
_BEST = re.compile(r"(?i)(?<!new )\bbest\b")
_WHERE_BEST = re.compile(r"(?i)[%\s]*(?:\(|(?:at|in|from|on|@)\s)")
_SETTING = re.compile(r"(?i)^(?:max|num|warm_?up)_\w|_(?:size|seq_len)$|^seed$")
_OF_PROGRAMS = frozenset((
    "num_workers", "seed", "random_seed", "batch_size", "train_batch_size", "eval_batch_size", "prefetch_factor",
    "weight_decay", "dropout", "num_classes", "n_classes", "num_layers", "n_layers", "num_heads", "n_heads",
    "hidden_dim", "hidden_size", "embed_dim", "vocab_size", "feature_dim", "max_epochs", "num_epochs", "max_steps",
    "warmup_steps", "warmup_epochs", "lr_warmup_epochs", "warmup_ratio", "label_smoothing", "accumulation_steps",
    "accumulate_steps", "gradient_accumulation_steps", "adam_epsilon", "momentum", "scheduler_gamma", "max_grad_norm",
    "max_clip_norm", "grad_clip", "clip_grad", "patience", "input_dim", "output_dim",
))  # fmt: skip
"""Names of settings that no training measures."""
_FEW_SETTINGS = 3
_BRACKETED = re.compile(r"^(?:\[[A-Za-z_ ]{1,40}\]\s?)+")


_OF_AN_EPOCH = re.compile(r"\]?\s{0,4}\[\s{0,8}\d{1,12}/\d{1,12}[\s(\]]")
"""After the number of an epoch, the batch and their number: ``Train: 3 [  50/1251]``, ``Train [3][50/1251]``."""
_BETWEEN = re.compile(r"[\])]\s{0,4}[\[(]")
"""Between the epoch and the batch, each with its total: ``[3/25][50/100]``, ``(3/25) (50/100)``."""
_BATCH_AFTER = re.compile(rf"{_BETWEEN.pattern}\s{{0,8}}\d{{1,12}}\s{{0,4}}/\s{{0,4}}\d{{1,12}}\s{{0,4}}[\])]")


def is_bare(named: Named | None, text: str, stop: int) -> bool:
    """Whether a fraction that ends at `stop` has no name but a word for the data, or is the epoch before a batch and
    its total: ``Train: [3/25][50/100]``."""
    if named is None or named.split or _BATCH_AFTER.match(text, stop):
        return True
    name = named.name.lower()
    return name in SPLITS or (not named.strong and name.rstrip(":") in SPLITS)


def counted_by(named: Named) -> tuple[str, Trust] | None:
    """What the fraction of this name counts; None if the name is not one of a position."""
    if not named.strong and (kind := _ABBREVIATED.get(named.name.lower())):
        return kind, Trust.LOCAL
    if named.name == "T" and named.strong:
        return POSITIONS["global_step"]  # "T = 25000 / 1000000 | Avg. reward: -3.1"
    own, slash, _ = named.name.partition("/")
    return position(own if slash else named.name)  # "global_step/max_steps: 1/100"


def parts(match: re.Match[str]) -> tuple[float, float | None]:
    """Numerator and denominator of a fraction; None for an unknown total (``12/?``)."""
    return float(match["a"]), float(match["b"]) if match["b"] != "?" else None


def place_fraction(record: Record, where: tuple[str, Trust], match: re.Match[str]) -> None:
    """Take a fraction as the epoch or the step and its total; `where` is what it counts, see `position`."""
    kind, level = where
    n, total = parts(match)
    if kind == "epoch":
        record.epoch, record.epochs = n, total
        record.at["epoch"], record.at["epochs"] = match.span("a"), match.span("b")
    elif kind == "step" and level >= record.level:
        if record.n is not None:
            record.set_aside(record.n, record.at["n"])
        record.n, record.total, record.level = n, total, level
        record.at["n"], record.at["total"] = match.span("a"), match.span("b")
    elif kind == "step" and record.other is None:
        record.set_aside(n, match.span("a"))
        if total is not None:
            record.other_total, record.at["other_total"] = total, match.span("b")


def of_the_best(record: Record, gap: str) -> bool:
    """Whether a position after `gap` is where the best value was: ``Best F1: 0.9 at epoch 3``."""
    return bool(record.values and _BEST.search(record.values[-1].tag) and _WHERE_BEST.match(gap))


_BEST_POSITION = re.compile(r"(?i)\bbest[ _](?:iter(?:ation)?|epoch|step|round)\b")


def rename_best(record: Record) -> None:
    """Values after the position of the best one are those of then: ``Best epoch: 35, train loss 0.09``."""
    first = record.values[0].tag if record.values else ""
    if _BEST_POSITION.search(first):
        record.values[1:] = [value._replace(tag=f"best {value.tag}") for value in record.values[1:]]


_PLACED = re.compile(
    r"(?P<name>.{2,60}?) (?:[Aa]t|[Aa]fter|@|[Ff]or|[Ii]n|[Oo]n) (?P<what>(?:\w{2,12} )?[A-Za-z]{2,9}):?"
)
_ITS_VALUE = re.compile(rf"[)\]]?(?: ?[:=]| is| was) ?(?P<value>{NUMBER}|{NONFINITE})(?![\w/:])")


def value_after(record: Record, named: Named, raw: str, span: tuple[int, int], text: str) -> int | None:
    """Where the value of a metric ends whose position is printed before it: ``Loss at step 12: 6.15``; else None.

    Takes both into the record, or neither where it says at which position the best value was.
    """
    placed = _PLACED.fullmatch(named.name) if raw.isdigit() and " " in named.name else None
    if placed is None or role_of(placed["name"]) is None:
        return None
    where, found = position(placed["what"]), _ITS_VALUE.match(text, span[1])
    if where is None or where[0] not in ("step", "epoch") or found is None:
        return None
    if not _BEST.search(placed["name"]):
        place(record, where, raw, span, placed["what"])
        record.values.append(Value(placed["name"], number(found["value"]), *found.span("value")))
    return found.end()


def position_before(name: str, text: str, stop: int) -> tuple[str, Trust] | None:
    """`position`, but for an "ep" of episodes: the epoch is named in full after it, ``ep:18 epch:0.37``."""
    return None if name.lower() == "ep" and _EPOCH_AHEAD.match(text, stop) else position(name)


def position_of_first(record: Record, named: Named, raw: str, text: str, stop: int) -> tuple[str, Trust] | None:
    """What a number behind the first word of a row counts, if that is no metric.

    The step after a word for the data: ``EVAL @ 250 | loss=1.2``, ``VALID 250 loss 1.2``; the epoch of
    ``e: 3 lr: 0.1 loss 0.5`` and of ``Train: 3 [50/1251] loss 0.5``.
    """
    split, _, between = named.name.partition(" ")
    if record.values or record.step is not None or record.n is not None or not raw.isdigit():
        return None
    if named.strong and named.name.lower() == "e" and record.epoch is None and _SUCCESS.search(text, stop):
        return POSITIONS["epoch"]
    if split.lower() in SPLITS and not between and record.epoch is None and _OF_AN_EPOCH.match(text, stop):
        return POSITIONS["epoch"]
    if split.lower() not in SPLITS or between not in ("", "@", "at", "after", "#") or named.strong:
        return None
    return POSITIONS["step"] if between or _is_scored(text, stop, _PRINTED) else None


def place_in_epoch(record: Record, match: re.Match[str], before: str) -> bool:
    """Take the second of ``[3][50/100]``, ``[3/25][50/100]`` or ``3/25 (12%) [50/100]`` as the position in the epoch
    that the first names; `before` is what stands between them."""
    beside = before == "[" and record.n is not None and record.level == Trust.NONE
    if (
        not (beside or _BETWEEN.fullmatch(before))
        or record.epoch is not None
        or (record.n is None and (record.step is None or record.level != Trust.LOCAL))
    ):
        return False
    if record.n is not None:
        record.epoch, record.epochs = record.n, record.total
        record.at = {"epoch": record.at["n"]} | ({"epochs": record.at["total"]} if "total" in record.at else {})
    else:
        record.epoch, record.step, record.level = record.step, None, Trust.NONE
        record.at = {"epoch": record.at["step"]}
    record.n, record.total = parts(match)
    record.at |= {"n": match.span("a"), "total": match.span("b")}
    return True


def place_unnamed(record: Record, match: re.Match[str], text: str, gap: str) -> None:
    """Numbers without a name at the start of a row: ``12) loss``, ``[3, 100] loss``, ``[3][100]``, ``0007: loss``;
    where a metric follows, also ``12 loss=0.5``, ``<12> loss 0.5``, ``(12) loss 0.5``."""
    if record.values or match["nonfinite"] or not match["number"].isdigit():
        return
    before, after = _BRACKETED.sub("", gap.strip()), text[match.end() : match.end() + 2]
    if before == "" and text[: match.start()].rstrip()[-1:].isdigit():
        return  # one of several numbers, as in a confusion matrix
    if before == "" and _ENTRY.match(text, match.end()):
        return  # "9: 40," of a dict in a configuration
    value, span = float(match["number"]), match.span("number")
    if before == "#" and match.start() < 12:
        record.step, record.level = value, Trust.STEP
        record.at["step"] = span
    elif (
        (before == "" and after[:1] in (")", ":"))
        or (before in ("", "[") and after == " |")  # "[100 | 123.45] loss"
        or (before == "" and record.step is None and any(_is_scored(text, match.end(), p) for p in _AFTER_A_COUNT))
        or (_CLOSING.get(before) == after[:1] and record.step is None and _is_scored(text, match.end() + 1, _PRINTED))
    ):
        record.step, record.level = value, Trust.LOCAL
        record.at["step"] = span
    elif before == "[" and record.epoch is None and _PAIR.match(text, match.end()):
        record.epoch = value
        record.at["epoch"] = span
    elif before in (",", ":") and after[:1] == "]" and record.epoch is not None and record.n is None:
        record.n, record.level = value, Trust.LOCAL
        record.at["n"] = span
    elif before == "[" and after[:1] == "]" and record.step is None:
        record.step, record.level = value, Trust.LOCAL
        record.at["step"] = span
    elif before == "][" and after[:1] == "]" and record.step is not None and record.level == Trust.LOCAL:
        record.epoch, record.n, record.step = record.step, value, None
        record.at["epoch"], record.at["n"] = record.at.pop("step"), span


def is_of_settings(record: Record) -> bool:
    """Whether a row lists settings: ``iterations:500 warmup_steps:20`` says how many there will be."""
    return any(_SETTING.search(v.tag) for v in record.values) and all(role_of(v.tag) is None for v in record.values)


_OF_CHOICES = later(
    r"(?i)(?<![\w.])(?:\w{1,30}_)?(?:optimi[sz]er|optim|activation|act|loss(?:_?(?:type|fn|func|function))|dataset"
    r"|data_?set|model(?:_?(?:name|type))?|arch(?:itecture)?|backbone|(?:lr_)?scheduler(?:_type)?|dtype|precision"
    r"|metric|kernel|init(?:iali[sz]er)?|norm|pooling|mode|device)\s?[=:]\s?['\"]?(?!nan|inf)[A-Za-z][\w./\-]*"
)
"""A setting that a word names: ``optimizer=Adam``, ``loss_type=square_loss``."""


def is_listing(record: Record, text: str) -> bool:
    """Whether a row holds a dump of many results, one after the other, or the configuration of a program."""
    tags = Counter(v.tag for v in record.values)
    if len(record.values) > 8 and max(tags.values()) > 2:
        return True
    if (
        all(role_of(tag) in (None, "lr") for tag in tags)
        and sum(1 for _ in _OF_CHOICES.finditer(text)) >= _FEW_SETTINGS
    ):
        return True  # "batch=128" of these is no position
    settings = sum(tag.lower().rsplit(".", 1)[-1].replace(" ", "_") in _OF_PROGRAMS for tag in tags)
    many = settings >= _FEW_SETTINGS or (settings == _FEW_SETTINGS - 1 and 2 * settings >= len(tags))
    return many and record.step is None and record.n is None


def place_before_word(record: Record, match: re.Match[str], text: str, gap: str) -> int:
    """Take the 0 of ``5/100 in 0 epoch`` as the epoch; returns where the word ends, or 0 if it is none."""
    if record.n is None or record.epoch is not None or gap.strip() not in ("in", "of", "at"):
        return 0
    found = _EPOCH_AFTER.match(text, match.end()) if (match["number"] or "").isdigit() else None
    if found is None:
        return 0
    place(record, POSITIONS["epoch"], match["number"], match.span("number"), "")
    return found.end()


def ordinal_head(record: Record, text: str, start: int) -> int:
    """Take the position at the head of a row, ``3th epoch, train loss: 0.5``, ``After 100 steps:``, ``----- 3 -----``;
    returns where it ends, or `start`."""
    found = _ORDINAL_HEAD.match(text, start) or _COUNT_HEAD.match(text, start) or _EPOCH_LABEL.match(text, start)
    found = found or _RULED.match(text, start)
    if found is None:
        return _glued_head(record, text, start)
    what = found.groupdict().get("what", "epoch")
    place(record, POSITIONS[what.lower()], found["n"], found.span("n"), "")
    return found.end()


def _glued_head(record: Record, text: str, start: int) -> int:
    """Take ``E100/500`` at the head of a row; returns where it ends, or `start`. One without a total counts only before
    a metric: ``E1234`` may be the code of an error."""
    found = _GLUED_HEAD.match(text, start)
    if found is None or not (found["b"] or _is_scored(text, found.end(), _PRINTED)):
        return start
    what = found["what"].lower()
    where = (_ABBREVIATED[what], Trust.LOCAL) if what in _ABBREVIATED else POSITIONS[what]
    if found["b"]:
        place_fraction(record, where, found)
    else:
        place(record, where, found["a"], found.span("a"), "")
    return found.end()


def epoch_anywhere(text: str, start: int) -> Record | None:
    """An epoch and nothing else, from a sentence that names both it and the number of epochs."""
    found = _EPOCH_ANYWHERE.search(text, start)
    if found is None:
        return None
    at = {"epoch": found.span(1), "epochs": found.span(2)}
    return Record(epoch=float(found[1]), epochs=float(found[2]), at=at)


def _is_scored(text: str, at: int, pattern: re.Pattern[str] = _SCORED) -> bool:
    """Whether a metric with a known role and its number follow text[:at]."""
    following = pattern.match(text, at)
    return following is not None and role_of(following["name"]) is not None


def place(record: Record, where: tuple[str, Trust], raw: str, span: tuple[int, int], name: str) -> None:
    """Take the number `raw`, printed at `span`, as what `where` says that it counts; `name` may begin with a split."""
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
    elif kind == "step" and "e" not in raw.lower() and value == int(value):
        if level > record.level:
            if record.step is not None:
                record.set_aside(record.step, record.at["step"])
            record.step, record.level = value, level
            record.at["step"] = span
        else:
            record.set_aside(value, span)
    first = name.split(" ")[0]
    if kind in ("step", "epoch") and first.lower() in HELD_OUT:
        record.split = first


def take_rank(record: Record) -> None:
    """Take the position of ``(0/4) Epoch 1, batch 50`` as the rank: it is 0 of 4 ranks."""
    if record.n is not None and record.step is not None:
        record.rank, record.n, record.total = int(record.n), None, None
        record.at["rank"] = record.at.pop("n")
        record.at.pop("total", None)
