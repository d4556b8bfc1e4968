"""Vision trainers that name the epoch and the batch in brackets: mmengine, mmcv, timm, torchvision, PaddleDetection."""

from __future__ import annotations

import re
from math import isfinite
from typing import ClassVar

from postmortem.core.roles import role_of
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_SCORES = ("loss", "val_loss", "accuracy", "val_accuracy")


def _position(record: Record, match: re.Match[str], base: int) -> Record:
    groups = match.groupdict()
    record.level, record.step, record.base = Trust.LOCAL, None, base
    record.epochs = None
    record.at = {}
    if groups.get("epoch"):
        record.epoch = float(match["epoch"])
        record.at["epoch"] = match.span("epoch")
    record.n = float(match["n"])
    record.at["n"] = match.span("n")
    record.total = None
    if groups.get("total"):
        record.total = float(match["total"])
        record.at["total"] = match.span("total")
    return record


@dialect
class OpenMmlab(Dialect):
    """mmengine ``Epoch(train) [1][10/20]  lr: …``, ``Iter(train) [  100/160000]``; mmcv 1.x ``Epoch [1][50/7330]``.

    Format: mmengine/logging, hooks/logger_hook.py; mmcv runner/hooks/logger/text.py. Epochs count from 1; values are
    means of the log window. Evaluations belong to the end of their epoch: the numbers in their brackets count
    validation data.
    """

    name = "openmmlab"
    priority = 14
    needles: ClassVar[tuple[str, ...]] = ("Epoch(", "Epoch [", "Iter(", "Iter [", "Exp name")
    _epoch = re.compile(
        r"Epoch ?(?:\((?P<mode>\w{1,10})\))? *+\[(?P<epoch>\d{1,9})\]\[ *(?P<n>\d{1,12})(?:/(?P<total>\d{1,12}))?\]"
    )
    _iter = re.compile(r"Iter ?(?:\((?P<mode>\w{1,10})\))? *+\[ *(?P<n>\d{1,12})(?:/(?P<total>\d{1,12}))?\]")
    _list = re.compile(r"\w{1,60}: {0,8}-?[\d.]++(?: -?[\d.]++)++")

    def parse(self, row: Row) -> Record | None:
        match = self._epoch.match(row.text) or self._iter.match(row.text)
        if match is None:
            return None
        text = row.text
        record = mine(text, match.end(), demand=False) or Record()
        lists = [m.span() for m in self._list.finditer(text, match.end())]
        record.values = [v for v in record.values if not any(a <= v.start < b for a, b in lists)]
        _position(record, match, 1)
        if match["mode"] in ("val", "test"):
            record.evaluation, record.split = True, match["mode"]
            record.values = [] if match["total"] and match["n"] != match["total"] else record.values
            record.once = True
            record.n = record.total = None
            record.at.pop("n")
        elif match.re is self._iter:
            record.step, record.level, record.n = record.n, Trust.ITERATION, None
            record.at["step"] = record.at.pop("n")
        return record


@dialect
class Timm(Dialect):
    """timm: ``Train: 3 [  50/1251 (  4%)]  Loss: 6.81 (6.88)  …`` and ``Test: [  97/97]  Loss: 4.702 ( 4.755)  …``.

    Format: timm's train.py; programs that follow it may leave out the share. The first number is the current value, the
    one in parentheses the mean of the epoch, both over ranks. The last test line has the totals in parentheses. Epochs
    and batches count from 0.
    """

    name = "timm"
    priority = 15
    needles: ClassVar[tuple[str, ...]] = ("Train: ", "Test: ")
    _train = re.compile(r"Train: (?P<epoch>\d{1,9}) \[ *(?P<n>\d{1,12})/(?P<total>\d{1,12})(?: \( *\d+%\))?\]")
    _test = re.compile(r"Test(?: \(\w+\))?: {1,2}\[ *(?P<n>\d{1,12})/(?P<total>\d{1,12})\] ")
    _mean = re.compile(rf"([A-Za-z][\w@]{{0,40}}): {{0,8}}{NUMBER} \( {{0,8}}({NUMBER}|nan|inf)\)")

    def parse(self, row: Row) -> Record | None:
        if match := self._train.match(row.text):
            record = mine(row.text, match.end(), demand=False)
            return _position(record, match, 0) if record is not None else None
        match = self._test.match(row.text)
        if match is None or not self._mean.search(row.text):
            return None
        record = Record(evaluation=True, split="Test", once=True)
        means = [Value(m[1], number(m[2]), *m.span(2)) for m in self._mean.finditer(row.text, match.end())]
        last = int(match["n"]) >= int(match["total"])
        record.values = [v for v in means if last or not isfinite(v.number)]  # what is lost stays lost to the end
        return record


@dialect
class MetricLogger(Dialect):
    """torchvision references, DETR, DeiT, MAE, DINO, PaddleDetection, the imagenet example.

    ``Epoch: [2]  [  10/1000]  eta: …  loss: 1.50 (1.49)``, and `` * Acc@1 71.2 Acc@5 90.1`` after the rows of a test.

    Format: references/detection/utils.py (median of the last 20, mean of the epoch in parentheses);
    examples/imagenet/main.py (value, mean); ppdet/engine/callbacks.py. Epochs and batches count from 0. The rows of a
    test are intermediate ones of one pass: the last one counts, with the means in parentheses. Where only every tenth
    batch is printed, it is the one after which no tenth is left.
    """

    name = "metric logger"
    priority = 16
    needles: ClassVar[tuple[str, ...]] = ("Epoch: [", "Test: ", "Val: ", "Validation: ", "* ")
    _train = re.compile(r"Epoch: \[(?P<epoch>\d{1,9})\] *\[ *(?P<n>\d{1,12})/(?P<total>\d{1,12})\]")
    _test = re.compile(r"(?P<split>Test|Val|Validation): *\[ *(?P<n>\d{1,12})/(?P<total>\d{1,12})\]")
    _whole = re.compile(r" ?\* +(?=[A-Za-z])")
    _of_training = re.compile(r"(?i)train(?:ing)?\b")
    _mean = re.compile(rf" {{0,3}}\( {{0,8}}({NUMBER}|{NONFINITE})\)")
    content: ClassVar[re.Pattern[str] | None] = _test

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        """The batch of the last row of a test, of each rank."""

    def parse(self, row: Row) -> Record | None:
        if whole := self._whole.match(row.text):
            record = mine(row.text, whole.end())
            if record is None or not any(role_of(value.tag) in _SCORES for value in record.values):
                return None
            if not self._of_training.match(record.values[0].tag):
                record.evaluation, record.split = True, "eval"
            return record
        match = self._train.match(row.text) or self._test.match(row.text)
        if match is None:
            return None
        record = mine(row.text, match.end(), demand=False) or Record()
        if match.re is self._train:
            return _position(record, match, 0)
        record.evaluation, record.split, record.once = True, match["split"], True
        record.n = record.total = record.step = None
        n, before = int(match["n"]), self.last.get(row.rank, 0)
        self.last[row.rank] = n
        means = [
            (v, self._mean.match(row.text, v.end))
            for v in record.values
            if v.end >= 0 and not v.tag.endswith(" (mean)")
        ]
        record.values = [Value(v.tag, number(m[1]), *m.span(1)) if m else v for v, m in means]
        if n + max(1, n - before) < int(match["total"]):
            record.values = [v for v in record.values if not isfinite(v.number)]  # stays so to the end of the pass
        return record


@dialect
class Darts(Dialect):
    """DARTS and the searches built on it: ``train 050 1.79e+00 33.45 84.28``, ``valid 000 1.57e+00 41.66 90.62``.

    Format: train.py of quark0/darts: the batch, then the means of loss, top-1 and top-5 accuracy (percent) over the
    epoch so far. Batches count from 0; the epoch stands in a row before (``epoch 3 lr 2.4e-02``). Of a validation the
    last row counts.
    """

    name = "darts"
    priority = 17
    needles: ClassVar[tuple[str, ...]] = ("train ", "valid ", "epoch ")
    _head = re.compile(rf"epoch (?P<epoch>\d{{1,9}}) lr (?P<lr>{NUMBER}) *$")
    _row = re.compile(rf"(?P<split>train|valid) (?P<n>\d{{3,9}}) ({NUMBER}|{NONFINITE}) ({NUMBER}) ({NUMBER}) *$")

    def __init__(self) -> None:
        self.epoch: dict[int, float] = {}
        """The epoch that the last head named, of each rank."""

    def parse(self, row: Row) -> Record | None:
        if head := self._head.match(row.text):
            self.epoch[row.rank] = float(head["epoch"])
            lr = Value("lr", number(head["lr"]), *head.span("lr"))
            return Record(values=[lr], epoch=float(head["epoch"]), base=0, once=True)
        match = self._row.match(row.text)
        if match is None:
            return None
        names = zip(("loss", "top1", "top5"), (3, 4, 5), strict=True)
        record = Record(
            values=[Value(f"{match['split']}_{tag}", number(match[k]), *match.span(k)) for tag, k in names],
            epoch=self.epoch.get(row.rank),
            base=0 if self.epoch else None,
            once=True,
        )
        if match["split"] == "valid":
            record.evaluation, record.split = True, "valid"
        else:
            record.level, record.n = Trust.LOCAL, float(match["n"])
        return record
