"""Boxes and tables of one program each; for tables of any program see `column_table`."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_CELL = re.compile(rf"(?P<value>{NUMBER}|{NONFINITE})(?P<unit>%| ?[a-zA-Zµ]{{1,4}})?(?: \([\d.]+ ?%\))?$")
_BOX_COUNTERS = (
    *("total_timesteps", "timesteps", "timestepssofar", "totalenvinteracts", "n_updates", "nupdates"),
    *("iterations", "iteration", "itersofar", "step", "steps"),
)
"""Names of counters in a box, the most reliable first."""


@dialect
class StableBaselines(Dialect):
    """Stable-Baselines3, OpenAI baselines, Spinning Up: ``| train/ |  |`` opens a group, ``|    loss | 4.6 |``.

    Format: stable_baselines3/common/logger.py, HumanOutputFormat; baselines/logger.py; spinup/utils/logx.py. The tag is
    group + name, the step `time/total_timesteps` or another counter of the same box, else its epoch, so a box becomes a
    record when it closes.
    """

    name = "stable-baselines3"
    priority = 23
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\|[^|]*+\|[^|]*+\|\s*+$|-{3,}\s*+$")
    _line = re.compile(
        rf"\| (?P<indent> *+)(?P<name>[\w./@%\-][\w./@%\- ]{{0,79}}?) *+\| *+(?P<value>{NUMBER}|{NONFINITE})? *\|$"
    )

    def __init__(self) -> None:
        self.box: dict[int, tuple[str, list[Value]]] = {}

    def parse(self, row: Row) -> Record | None:
        text = row.text.rstrip()
        if text.startswith("---") and set(text) == {"-"}:
            group, values = self.box.pop(row.rank, ("", []))
            del group
            return self._close(values) if values else None
        match = self._line.match(text)
        if match is None:
            return None
        group, values = self.box.get(row.rank, ("", []))
        if match["value"] is None:
            group = match["name"].rstrip("/") + "/"
        else:
            values = [*values, Value((group if match["indent"] else "") + match["name"], number(match["value"]))]
        self.box[row.rank] = (group, values)
        return Record()

    @staticmethod
    def _close(values: list[Value]) -> Record:
        counters = {v.tag.rsplit("/", 1)[-1].lower().replace(" ", "_"): v for v in values}
        found = next((counters[k] for k in _BOX_COUNTERS if k in counters), None)
        record = Record([v for v in values if not v.tag.endswith("total_timesteps")])
        if found is not None:
            record.step, record.level = found.number, Trust.GLOBAL
        elif (epoch := counters.get("epoch", counters.get("epochs"))) is not None:
            record.epoch = epoch.number
            record.values = [v for v in record.values if v is not epoch]
        return record


_BOXES = ["P", "R", "mAP50", "mAP50-95"]
_YOLO_SCORES = {4: _BOXES, 8: [*_BOXES, *(f"mask {name}" for name in _BOXES)]}
"""The columns of a row ``all`` whose head went to another stream, by their number."""


@dialect
class Ultralytics(Dialect):
    """YOLO: a header ``Epoch GPU_mem box_loss …``, rows ``1/100 2.61G 1.411 …: 100% ━━━``, and a validation table.

    Format: ultralytics/engine/trainer.py. Values are means of the epoch so far, so the state at 100 % counts. Headers
    and the rows ``all`` of the validation go to stdout, the rest to stderr: where only those are there (a job's
    ``.out``), or come first, the headers count the epochs, from that of "Resuming training … from epoch 37".
    """

    name = "ultralytics"
    priority = 24
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\s*(?:Epoch|Class|\d+/\d+|all|Resuming training) ")
    _resumed = re.compile(r"Resuming training .{1,500} from epoch (\d{1,9})\b")

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.validation: list[str] = []
        self.epoch: float | None = None
        self.heads = 0

    def sniff(self, sample: str) -> bool:
        return "GPU_mem" in sample or "gpu_mem" in sample

    def parse(self, row: Row) -> Record | None:
        cells = row.text.split()
        if len(cells) < 4:
            return None
        if cells[0] == "Epoch" and cells[1].lower() == "gpu_mem":
            self.columns = cells
            self.heads += 1
            return Record()
        if resumed := self._resumed.match(row.text):
            self.heads = int(resumed[1]) - 1
            return Record()
        if cells[0] == "Class" and "Images" in cells:
            self.validation = [c.rstrip(":") for c in row.text.split(": ")[0].split()]
            self.validation = [
                c[:-1] if c.endswith(")") and "(" not in c else c.replace("Box(", "").replace("Mask(", "mask ")
                for c in self.validation
            ]
            return Record()
        names = self.validation[3:] or _YOLO_SCORES.get(len(cells) - 3, []) if cells[0] == "all" else []
        if names and self.columns:
            values = [Value(n, number(c)) for n, c in zip(names, cells[3:], strict=False) if _CELL.match(c)]
            return Record(values, epoch=self.heads if self.epoch is None else self.epoch)
        if self.columns and (match := re.match(r"(\d{1,9})/(\d{1,9})$", cells[0])):
            self.epoch = float(match[1])
            if "100%" not in row.text and "%" in row.text:
                return Record()
            record = Record(epoch=self.epoch, epochs=float(match[2]))
            for column, cell in zip(self.columns[1:], cells[1:], strict=False):
                found = _CELL.match(cell.rstrip(":"))
                if found and column not in ("Instances", "Size", "instances", "size"):
                    record.values.append(Value(column, number(found["value"])))
            return record
        return None


@dialect
class YoloResults(Dialect):
    """``results.txt`` of YOLOv3 to YOLOv7: a row per epoch, no header: ``0/299 1.81G 0.069 0.02 0.01 0.1 …``.

    Format: train.py of these repositories: what the bar prints (memory, losses, their total, labels, image size), then
    precision, recall, mAP and the losses of the validation. Epochs count from 0.
    """

    name = "yolo results"
    priority = 25
    needles: ClassVar[tuple[str, ...]] = ("G ",)
    _names: ClassVar[tuple[str, ...]] = (
        *("gpu_mem", "train/box_loss", "train/obj_loss", "train/cls_loss", "train/total_loss"),
        *("", "", "metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
        *("val/box_loss", "val/obj_loss", "val/cls_loss"),
    )
    """Columns after the epoch; numbers of labels and the image size are left out."""
    _row = re.compile(
        rf"\s*+(?P<epoch>\d{{1,9}})/(?P<epochs>\d{{1,9}})\s++[\d.]++G(?:\s++(?:{NUMBER}|{NONFINITE})){{13}}\s*+$"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._row.match(row.text)
        if match is None:
            return None
        cells = zip(self._names, re.finditer(r"\S+", row.text[match.end("epochs") :]), strict=True)
        record = Record(epoch=float(match["epoch"]), epochs=float(match["epochs"]))
        record.at = {"epoch": match.span("epoch"), "epochs": match.span("epochs")}
        for name, cell in cells:
            if name:
                start = match.end("epochs") + cell.start()
                end = start + len(cell[0].rstrip("G"))
                record.values.append(Value(name, number(row.text[start:end]), start, end))
        return record
