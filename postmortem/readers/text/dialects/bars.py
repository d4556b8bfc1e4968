"""Redrawn bars: tqdm and what is built on it (Lightning, NeMo, diffusers, kohya, AllenNLP, ignite)."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.step_words import HELD_OUT

_FRAME = re.compile(
    r"(?<![\d.])(?P<n>\d{1,15})(?:\.\d{1,2})?(?P<unit>[kMG]?)/(?P<total>\d{1,15}|\?)(?:\.\d{1,2})?[kMG]? "
    r"\[[^\]\[]{0,40}?(?:<[^\],]{0,40})?"
    r"(?:, *+[^,\]]{0,24}(?:it|s|B|\w{1,12})/(?:it|s|\w{1,12})|, *+\?[^,\]]{0,12})?(?P<end>[,\]])"
)
_OPEN = re.compile(r"(?P<n>\d{1,15})it \[[^\]\[,]{0,30}, *+[^,\]]{0,24}(?P<end>[,\]])")
_EPOCH = re.compile(
    r"\b[Ee](?:poch|POCH|p)\b\s{0,4}[:#\[(]?\s{0,4}(?P<epoch>\d{1,9})(?:\s{0,4}/\s{0,4}(?P<epochs>\d{1,9}))?"
)
_OF_EPOCHS = re.compile(r"(?:s/|\d)epochs?[,\]]|epochs?/s[,\]]")
"""The rate of a bar that counts epochs: ``2/10 [00:30<02:00, 15.0s/epoch, loss=0.4]``."""
_PERCENT = re.compile(r"\d{1,3}(?:\.\d+)?%\|[^|]{0,200}\|")
_DROPPED = {"v_num"}
_PREPARATION = re.compile(
    r"(?i:\s*(?:map|filter|download|load|generat|tokeniz|preprocess|sav|extract|cach|build|fetch|resolv|creat|collect|encod|convert|read|scann?|group"
    r"|index|copy|unpack|pack|shuffl|flatten|concatenat|comput)(?:ing)?\b)"
)


@dialect
class Bars(Dialect):
    """tqdm: ``desc:  42%|████▏     | 42/100 [00:12<00:17,  3.40it/s, loss=0.41, lr=1e-5]``.

    Format: tqdm.std.tqdm.format_meter. The position is n of total, in an epoch where the description names one
    (Lightning counts epochs from 0). Rates, times and the percentage are no metrics; a `global_step` in the postfix is
    rounded to 3 digits and not used, other global counters (`env_step`) are. A bar of Lightning at 0 shows what the
    epoch before left. Bars of evaluations and of data preparation do not count training steps.
    """

    name = "tqdm"
    priority = 40
    needles: ClassVar[tuple[str, ...]] = ("it/s", "s/it", "<", "it [")

    def parse(self, row: Row) -> Record | None:
        text = row.text
        frame = _FRAME.search(text) or _OPEN.search(text)
        if frame is None or (
            "%" not in text[: frame.start()] and "|" not in text[: frame.start()] and frame.re is _FRAME
        ):
            return None
        record = Record(bar=True, level=Trust.LOCAL)
        head = text[: frame.start()]
        percent = _PERCENT.search(head)
        description = head[: percent.start()] if percent else head.split("|")[0]
        if not frame.groupdict().get("unit"):
            record.n = float(frame["n"])
            record.at["n"] = frame.span("n")
        total = frame.groupdict().get("total")
        if total and total != "?":
            record.total = float(total)
            record.at["total"] = frame.span("total")
        _place_epoch(record, text, description, frame)
        words = {w.strip("[]():").lower() for w in description.replace("_", " ").split()[:3]}
        if words & HELD_OUT or "sanity" in words:
            record.evaluation = True
            record.split = next(iter(words & HELD_OUT), "")
        if "sanity" in words or (frame["end"] == "]" and _PREPARATION.match(description)):
            return Record()
        if frame["end"] == "," and (postfix := mine(text, frame.end(), demand=False)):
            if frame["n"] == "0" and "v_num=" in text:
                return Record()  # Lightning resets its bar for the next epoch: old description, old values
            record.values += [v for v in postfix.values if v.tag not in _DROPPED]
            if postfix.level == Trust.GLOBAL and postfix.step is not None and "global_step" not in text:
                record.step, record.level, record.n, record.total = postfix.step, Trust.GLOBAL, None, None
                record.at = {k: v for k, v in record.at.items() if k not in ("n", "total")} | {
                    "step": postfix.at["step"]
                }
        if described := mine(description, demand=False):
            record.values += described.values
        if record.evaluation:
            record.n = record.total = None
        elif (
            not record.values
            and description.strip(" :")
            and record.epoch is None
            and not words & {"training", "train", "steps", "step", "iterations", "iteration", "epoch"}
        ):
            return Record()  # "Map: 100%", "Downloading": not the training
        return record


def _place_epoch(record: Record, text: str, description: str, frame: re.Match[str]) -> None:
    """Take the epoch that the description of a bar names, or that the bar itself counts."""
    if epoch := _EPOCH.search(description):
        record.epoch = float(epoch["epoch"])
        record.at["epoch"] = epoch.span("epoch")
        if epoch["epochs"]:
            record.epochs = float(epoch["epochs"])
            record.at["epochs"] = epoch.span("epochs")
        elif "v_num=" in text:
            record.base = 0
    elif record.total is not None and "n" in record.at and _OF_EPOCHS.search(text, frame.start(), frame.end()):
        record.epoch, record.epochs, record.n, record.total = record.n, record.total, None, None
        record.at = {"epoch": record.at["n"], "epochs": record.at["total"]}


@dialect
class Ignite(Dialect):
    """ignite: ``Epoch [1/2]: [3/8]  38%|███▊ [00:00<00:00]``, the count before the percentage and no values."""

    name = "ignite"
    priority = 39
    needles: ClassVar[tuple[str, ...]] = ("%|",)
    _pattern = re.compile(
        r"(?:Epoch \[(?P<epoch>\d+)/(?P<epochs>\d+)\]:? )?\[(?P<n>\d+)/(?P<total>\d+)\] +\d+%\|"
        r"[^\[]{0,200}\[[^\],]{0,40}(?P<end>[,\]])"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._pattern.match(row.text)
        if match is None:
            return None
        record = Record(
            bar=True,
            level=Trust.LOCAL,
            n=float(match["n"]),
            total=float(match["total"]),
            at={"n": match.span("n"), "total": match.span("total")},
        )
        if match["epoch"]:
            record.epoch, record.epochs = float(match["epoch"]), float(match["epochs"])
            record.at["epoch"], record.at["epochs"] = match.span("epoch"), match.span("epochs")
        if match["end"] == "," and (postfix := mine(row.text, match.end(), demand=False)):
            record.values = postfix.values
        return record


@dialect
class TransformersDict(Dialect):
    """Hugging Face Trainer, TRL, axolotl, sentence-transformers: ``{'loss': 2.13, 'grad_norm': 1.2, 'epoch': 0.02}``.

    Printed by transformers' PrinterCallback and ProgressCallback; 5.x prints strings of 4 digits. No step is in the
    line: it comes from the bar around it and the epoch. ``epoch`` is kept as a value, for it is printed as one.
    """

    name = "transformers"
    priority = 20
    needles: ClassVar[tuple[str, ...]] = ("{'",)
    _start = re.compile(r"\{'[A-Za-z_/.\- ]{1,80}': ")

    def parse(self, row: Row) -> Record | None:
        start = self._start.search(row.text)
        if start is None or "'epoch'" not in row.text[start.start() :]:
            return None
        if (
            row.text[: start.start()].strip()
            and "it/s]" not in row.text[: start.start()]
            and "s/it]" not in row.text[: start.start()]
        ):
            return None
        record = mine(row.text, start.start(), demand=False)
        if record is None or record.epoch is None or record.step is not None:
            return None
        if len(record.values) < 1:
            return None
        record.fractional = True
        record.values.append(Value("epoch", record.epoch, *record.at["epoch"]))
        return record


@dialect
class LoggedBars(Dialect):
    """tqdm-loggable (levanter and others).

    ``Progress on:train 30.0it/100it rate:1.2it/s remaining:01:10 elapsed:00:25 postfix:loss=3.2``.

    Format: tqdm_loggable/tqdm_logging.py. It writes a line where a terminal would get a bar. Counts above 999 are
    rounded (``1.23kit``) and then no position.
    """

    name = "tqdm-loggable"
    priority = 41
    needles: ClassVar[tuple[str, ...]] = ("Progress on:",)
    _pattern = re.compile(
        r"Progress on:(?P<what>[^:]{0,80}?) (?P<n>\d{1,15})(?:\.0)?(?P<unit>[kMG]?)\w{2,12}/"
        r"(?:(?P<total>\d{1,15})(?:\.0)?(?:[kMG]?)\w{2,12}|-) rate:"
    )
    _postfix = re.compile(r"\bpostfix:")

    def parse(self, row: Row) -> Record | None:
        match = self._pattern.search(row.text)
        if match is None:
            return Record() if "Progress on:" in row.text and " rate:" in row.text else None
        record = Record(bar=True, level=Trust.LOCAL)
        if match["what"].strip().lower() in HELD_OUT:
            record.evaluation, record.split = True, match["what"].strip()
        elif not match["unit"]:
            record.n = float(match["n"])
            record.at["n"] = match.span("n")
            if match["total"]:
                record.total = float(match["total"])
                record.at["total"] = match.span("total")
        found = self._postfix.search(row.text, match.end())
        if found and (postfix := mine(row.text, found.end(), demand=False)):
            record.values = postfix.values
        return record
