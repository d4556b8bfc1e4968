"""Styles with one step over several lines: OLMo, composer, RLlib, test reports, Keras and Lightning's rich bar."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.step_words import SPLITS
from postmortem.readers.text.records.tokens import LONGEST_ROW, NONFINITE, NUMBER, number

_REACH = 5
"""Lines below a header within which its block may continue."""
_SCALE = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dialect
class Olmo(Dialect):
    """OLMo and OLMo-core: a header ``[step=10/739328,epoch=0]``, then one indented ``name=value`` per line.

    Format: olmo/train.py, olmo_core/train/callbacks/console_logger.py. Names have spaces, parentheses and slashes;
    values thousands separators or K, M, B, T.
    """

    name = "olmo"
    priority = 17
    needles: ClassVar[tuple[str, ...]] = ("=",)
    _header = re.compile(r"\[step=(?P<step>\d{1,15})/(?:\d+|\?+)(?:,epoch=\d+)?(?:,eta=[^\]]{0,60})?\]")
    _line = re.compile(
        rf"\s{{2,8}}(?P<tag>[A-Za-z][\w ./()@\-]{{0,100}}?)=(?P<value>{NUMBER}|{NONFINITE})(?P<suffix>[KMBT]?)$"
    )

    def sniff(self, sample: str) -> bool:
        return "[step=" in sample

    def parse(self, row: Row) -> Record | None:
        if match := self._header.match(row.text):
            return Record(step=float(match["step"]), level=Trust.GLOBAL, at={"step": match.span("step")})
        if match := self._line.match(row.text):
            factor = _SCALE.get(match["suffix"])
            span = match.span("value") if factor is None else (-1, -1)
            return Record([Value(match["tag"], number(match["value"]) * (factor or 1.0), *span)])
        return None


@dialect
class Composer(Dialect):
    """MosaicML composer: ``[batch=10/1000]:`` or ``[epoch=1][batch=3/50]:``, then lines of values.

    A line of values is a tab and ``Train loss/train/total: 2.8312``.

    Format: composer/loggers/console_logger.py. `[Eval batch=50/50]` counts evaluation batches and is no training step.
    """

    name = "composer"
    priority = 18
    needles: ClassVar[tuple[str, ...]] = ("batch=", " Train ", " Eval ")
    _header = re.compile(
        r"(?:\[epoch=(?P<epoch>\d{1,9})(?:/\d+)?\])?\[(?:batch|token|sample|iteration)=(?P<n>\d{1,15})(?:/(?P<total>\d{1,15}))?\]:"
    )
    _evaluation = re.compile(r"\[Eval batch=\d+/\d+\]")
    _line = re.compile(rf"\s+(?:Train|Eval) (?P<tag>[A-Za-z][\w ./()@\-]{{0,120}}): (?P<value>{NUMBER}|{NONFINITE})$")

    def sniff(self, sample: str) -> bool:
        return "batch=" in sample or "[token=" in sample or "[sample=" in sample

    def parse(self, row: Row) -> Record | None:
        if match := self._header.match(row.text):
            record = Record(n=float(match["n"]), level=Trust.LOCAL, at={"n": match.span("n")})
            if match["total"]:
                record.total = float(match["total"])
                record.at["total"] = match.span("total")
            if match["epoch"]:
                record.epoch = float(match["epoch"])
                record.at["epoch"] = match.span("epoch")
            return record
        if match := self._line.match(row.text):
            return Record([Value(match["tag"], number(match["value"]), *match.span("value"))])
        return Record() if self._evaluation.match(row.text) else None


@dialect
class Rllib(Dialect):
    """RLlib: one YAML document per iteration, keys nested by indentation; the step is near its end.

    Format: ray.tune.logger.pretty_print. The step is `training_iteration`. Keys of a block are joined by ``/``.
    """

    name = "rllib"
    priority = 19
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\s*[\w./@\-]+:")
    _line = re.compile(rf"(?P<indent> *)(?P<key>[\w./@\-]+):(?: (?P<value>{NUMBER}|{NONFINITE})?(?P<rest>.*))?$")

    def __init__(self) -> None:
        self.path: list[tuple[int, str]] = []
        self.values: list[Value] = []

    def sniff(self, sample: str) -> bool:
        return "training_iteration:" in sample and "timesteps_total" in sample

    def parse(self, row: Row) -> Record | None:
        match = self._line.match(row.text)
        if match is None:
            return None
        depth = len(match["indent"])
        while self.path and self.path[-1][0] >= depth:
            self.path.pop()
        if match["value"] is None or match["rest"]:
            if not (match["rest"] or "").strip():
                self.path.append((depth, match["key"]))
            return Record()
        if match["key"] == "training_iteration":
            done, self.values, self.path = self.values, [], []
            return Record(done, step=number(match["value"]), level=Trust.GLOBAL)
        self.values.append(Value("/".join([*(k for _, k in self.path), match["key"]]), number(match["value"])))
        return Record()


@dialect
class WrappedDict(Dialect):
    """A Python dict or JSON object over several lines (pprint, json.dumps with indent).

    It is read when it closes, because the step may be the last member. Members may be dicts themselves, on one line or
    on several.
    """

    name = "wrapped dict"
    priority = 26
    _key = r"['\"][\w ./@\-]{1,80}['\"]: (?:[^{}]|\{[^{}]*+\})*+"
    _inner = r"['\"][\w ./@\-]{1,80}['\"]: \{"
    content: ClassVar[re.Pattern[str] | None] = re.compile(
        rf"\s*+(?:[{{}}],?\s*+$|\{{{_key}$)|\s++{_key}\}}?,?\s*+$|\s++{_inner}\s*+$"
    )
    _opens = re.compile(rf"\s*+\{{(?:\s*+|{_key}(?<=[, ]))$")
    _goes_on = re.compile(rf"\s++(?:{_key}|(?P<inner>{_inner}))(?P<closed>\}})?,?\s*+$")
    _closes = re.compile(r"\s*+\},?\s*+$")

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, str, int]] = {}
        """Line, text so far and depth of the dict that is open, by rank."""

    def parse(self, row: Row) -> Record | None:
        line, text, depth = self.open.pop(row.rank, (-2, "", 0))
        if text and row.line - line == 1 and len(text) < LONGEST_ROW:
            goes_on = self._goes_on.match(row.text)
            if goes_on is not None or self._closes.match(row.text):
                depth += 1 if goes_on is not None and goes_on["inner"] else 0
                depth -= 1 if goes_on is None or goes_on["closed"] else 0
                text += " " + row.text.strip()
                if depth == 0:
                    return self._whole(text)
                self.open[row.rank] = (row.line, text, depth)
                return Record()
        if self._opens.match(row.text):
            self.open[row.rank] = (row.line, row.text.strip(), 1)
            return Record()
        return None

    @staticmethod
    def _whole(text: str) -> Record | None:
        """The record of the dict, joined to one line; positions in that line are not positions in a row."""
        record = mine(text, demand=False)
        if record is not None:
            record.at, record.values = {}, [v._replace(start=-1, end=-1) for v in record.values]
        return record


@dialect
class TestReport(Dialect):
    """The tutorials' ``Test Error:`` line, or ``📊 Evaluation Results:``, with the results indented below it; also
    ``Train:`` and ``Valid:`` in a block of an epoch, each above rows such as ``loss  0.53``."""

    name = "test report"
    priority = 30
    _result = re.compile(r"(?P<indent>\s{1,16})[A-Za-z][A-Za-z _]{1,24}(?:[:=] |\s{2,20}(?=[-+\d.n]))")
    content: ClassVar[re.Pattern[str] | None] = re.compile(
        r"\s{1,16}[A-Za-z][A-Za-z _]{1,24}(?:[:=] |\s{2})"
        r"|\s{0,12}[^\w\s]{0,4}\s?(?i:train|val|test|eval|dev)\w{0,12}(?: \w{1,12})?(?:[:.]| \.\.\.)\s*$"
    )
    _header = re.compile(
        r"(?P<indent>\s{0,12})[^\w\s]{0,4}\s?(?P<split>[A-Za-z]{3,12})(?: (?:Error|set|results?|metrics|scores?))?"
        r"(?:[:.]| \.\.\.)\s*$",
        re.IGNORECASE,
    )

    def __init__(self) -> None:
        self.header: dict[int, tuple[int, int, str]] = {}
        """The last header of each rank: its line, how far it is indented, the split."""

    def parse(self, row: Row) -> Record | None:
        line, indent, split = self.header.get(row.rank, (-_REACH, 0, ""))
        found = self._result.match(row.text) if row.line - line < _REACH else None
        if found and len(found["indent"]) > indent and (record := mine(row.text)) and record.values:
            record.split = split
            return record
        if len(row.text) < 40 and (match := self._header.match(row.text)) and match["split"].lower() in SPLITS:
            self.header[row.rank] = (row.line, len(match["indent"]), match["split"])
        return None


@dialect
class Keras(Dialect):
    """Keras: ``Epoch 1/3``, then ``6/6 ━━━━━━ 1s 121ms/step - loss: 2.0906 - val_loss: 1.7026``.

    Format: keras/src/utils/progbar.py. The bar may be missing. Values are means of the epoch, so only its last state
    counts.
    """

    name = "keras"
    priority = 21
    needles: ClassVar[tuple[str, ...]] = ("/step - ", "s - ", " - loss:")
    _line = re.compile(
        r"\s*(?P<n>\d{1,12})/(?P<total>\d{1,12}) (?:\[[=>.]{1,60}\]|[━ ]{1,60})? ?-? ?"
        r"(?P<time>ETA: \S{1,20}|\d[\d.hms: ]{0,20})(?: \S{1,12}/(?:step|epoch|sample))?(?P<values> - )"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._line.match(row.text)
        if match is None:
            return None
        record = mine(row.text, match.start("values"), demand=False)
        if record is None:
            return None
        if match["n"] != match["total"] or "ETA" in match["time"]:
            return Record(once=True)
        record.n = record.total = record.step = None
        record.at = {}
        record.once = True
        return record


@dialect
class LightningRich(Dialect):
    """Lightning's rich bar in a file: only its last state, the values wrapped one per line in the right column."""

    name = "lightning rich"
    priority = 22
    needles: ClassVar[tuple[str, ...]] = ()
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\s{20,}\S|Epoch \d+/\d+ +━")
    _bar = re.compile(r"Epoch (?P<epoch>\d{1,9})/\d{1,9} [━╸╺ ]{3,200}+.*?•[^•]{0,40}it/s(?P<values>.*)$")
    _pair = re.compile(
        rf"(?P<name>[A-Za-z_][\w/@.\-]{{0,80}}): *(?P<value>{NUMBER}|{NONFINITE})?(?:\s|$)"
        rf"|(?P<alone>{NUMBER}|{NONFINITE})(?:\s|$)"
    )

    def __init__(self) -> None:
        self.name_open = ""
        self.epoch: float | None = None
        self.line = 0

    def sniff(self, sample: str) -> bool:
        return True

    def parse(self, row: Row) -> Record | None:
        if "━" in row.text and (match := self._bar.match(row.text)):
            self.epoch, self.name_open, self.line = float(match["epoch"]), "", row.line
            return self._values(row.text, match.start("values"))
        if self.epoch is not None and row.text.startswith(" " * 20) and row.line - self.line < _REACH:
            self.line = row.line
            return self._values(row.text, 0)
        return None

    def _values(self, text: str, start: int) -> Record:
        record = Record(epoch=self.epoch)
        for match in self._pair.finditer(text, start):
            if match["name"]:
                self.name_open = match["name"]
            value = match["value"] or match["alone"]
            if value and self.name_open:
                if self.name_open != "v_num":
                    record.values.append(Value(self.name_open, number(value)))
                self.name_open = ""
        return record if record.values else Record()
