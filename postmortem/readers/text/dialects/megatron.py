"""Megatron-LM, GPT-NeoX, Megatron-DeepSpeed, and DeepSpeed's own lines."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value


@dialect
class Megatron(Dialect):
    """``iteration     10/   150 | consumed samples: 5120 | lm loss: 8.82E+00 | loss scale: 1.0 | grad norm: 2.5 |``.

    Format: megatron/training/training.py, training_log; NeoX puts samples/sec first. A loss is printed only if its mean
    is >= 0, so with NaN its key is missing from the line: losses that earlier lines printed are NaN then. Printed by
    the last rank, for all.
    """

    name = "megatron"
    priority = 10
    needles: ClassVar[tuple[str, ...]] = ("iteration", "the end of training")
    _iteration = re.compile(r"(?:^|\| ?)\s*+iteration\s++(?P<step>\d{1,15})/\s*+(?P<total>\d{1,15}) \|")
    _loss = re.compile(r"\|\s*+[\w ]{0,40}loss\s*+:")
    _validation = re.compile(
        r"\s*(?P<split>validation|test)(?: loss| results)? at "
        r"(?:iteration (?P<step>\d{1,15})|the end of training[^|]{0,60}) \|"
    )
    _memory = re.compile(r"\(after (?P<step>\d{1,15}) iterations\) memory \((?P<unit>\w+)\) \|")

    def parse(self, row: Row) -> Record | None:
        text = row.text
        if match := self._iteration.search(text):
            record = mine(text, demand=False)
            if record is None:
                return None
            record.values = [v for v in record.values if v.tag not in ("iteration",)]
            record.step, record.total, record.n, record.level = (
                float(match["step"]),
                float(match["total"]),
                None,
                Trust.GLOBAL,
            )
            record.epoch = None
            record.at = {"step": match.span("step"), "total": match.span("total")}
            if not self._loss.search(text.replace("loss scale", "")):
                record.absent = ("lm loss", "lm_loss")
            return record
        if match := self._validation.match(text):
            record = mine(text, match.end() - 1, demand=False)
            if record is None or not record.values:
                return None
            record.values = [v._replace(tag=f"{match['split']} {v.tag.replace(' value', '')}") for v in record.values]
            if match["step"]:
                record.step, record.level = float(match["step"]), Trust.GLOBAL
                record.at["step"] = match.span("step")
            return record
        if match := self._memory.search(text):
            record = mine(text, match.end() - 1, demand=False)
            if record is not None:
                record.values = [v._replace(tag=f"memory ({match['unit']}) {v.tag}") for v in record.values]
                record.step, record.level = float(match["step"]), Trust.ITERATION
                record.at["step"] = match.span("step")
            return record
        return None


@dialect
class DeepSpeed(Dialect):
    """``step=10, skipped=2, lr=[6e-06], mom=[(0.9, 0.999)]`` and lines of speed.

    The latter are ``epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=…``.

    Format: deepspeed/runtime/engine.py and utils/timer.py. The first of a list of learning rates is used; the momentum
    is a setting. `skipped` is cumulative. ``0/125, SamplesPerSec=`` of older versions counts micro-batches and is no
    step.
    """

    name = "deepspeed"
    priority = 11
    needles: ClassVar[tuple[str, ...]] = ("skipped=", "SamplesPerSec")
    _timer = re.compile(
        r"(?:epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+)|\d+/\d+), (?:RunningAvg|Curr)?SamplesPerSec="
    )

    def parse(self, row: Row) -> Record | None:
        text = row.text
        if text.startswith("step=") and "skipped=" in text:
            record = mine(text, demand=False)
            if record is not None:
                record.values = [v for v in record.values if v.tag != "mom"]
            return record
        if (match := self._timer.match(text)) and (record := mine(text, text.index(", ") + 1, demand=False)):
            if match["step"]:
                record.step, record.level = float(match["step"]), Trust.GLOBAL
                record.at["step"] = match.span("step")
            return record
        return None


@dialect
class Fairseq(Dialect):
    """fairseq, metaseq: ``… | train_inner | epoch 001:   100 / 1250 loss=9.252, …, num_updates=100``, or JSON.

    Format: fairseq/logging/progress_bar.py. The logger's name is the split: `train_inner` prints windows, `train` the
    mean of the epoch, `valid` (or the subset) an evaluation. The step is num_updates; losses are in bits.
    """

    name = "fairseq"
    priority = 12
    needles: ClassVar[tuple[str, ...]] = ("num_updates",)

    def parse(self, row: Row) -> Record | None:
        record = mine(row.text, demand=False)
        if record is None or record.level != Trust.GLOBAL:
            return None
        logger = (row.prefix.logger or "").strip()
        record.n = record.total = None
        record.at.pop("n", None)
        if logger in ("train", "valid", "test", "valid1", "valid2", "dev"):
            record.values = [
                v if v.tag.startswith(f"{logger}_") else v._replace(tag=f"{logger} {v.tag}") for v in record.values
            ]
        record.split = ""
        return record


@dialect
class Espnet(Dialect):
    """ESPnet2: lines of batches, ``3epoch:train:1-50batch: loss_ctc=180.3, …``, and of results at the end of an epoch.

    The latter are ``3epoch results: [train] loss=71.2, total_count=3000, …, [valid] loss=64.1, …``.

    Format: espnet2/train/reporter.py. The first is a mean over a range of batches that skips non-finite values; in
    the second `total_count` counts the batches since the start.
    """

    name = "espnet2"
    priority = 13
    needles: ClassVar[tuple[str, ...]] = ("epoch:", "epoch results:")
    _range = re.compile(r"(?P<epoch>\d{1,9})epoch:(?P<split>\w{1,20}):(?P<first>\d{1,12})-(?P<last>\d{1,12})batch: ")
    _results = re.compile(r"(?P<epoch>\d{1,9})epoch results: ")
    _section = re.compile(r"\[(\w{1,20})\] ")

    def parse(self, row: Row) -> Record | None:
        if match := self._range.match(row.text):
            record = mine(row.text, match.end(), demand=False)
            if record is None:
                return None
            record.epoch, record.base = float(match["epoch"]), 1
            record.n, record.level = float(match["last"]), Trust.LOCAL
            record.at = {"epoch": match.span("epoch"), "n": match.span("last")}
            return record
        if match := self._results.match(row.text):
            return self._result(row.text, match)
        return None

    def _result(self, text: str, match: re.Match[str]) -> Record | None:
        record = Record(epoch=float(match["epoch"]), base=1)
        sections = list(self._section.finditer(text, match.end()))
        for section, following in zip(sections, [*sections[1:], None], strict=True):
            part = mine(text[: following.start() if following else None], section.end(), demand=False)
            for value in part.values if part else ():
                if value.tag == "total_count":
                    if section[1] == "train":
                        record.step, record.level, record.epoch = value.number, Trust.GLOBAL, None
                    continue
                record.values.append(Value(f"{section[1]} {value.tag}", value.number))
        return record if record.values else None
