"""Tables: a header names the columns, or boxes hold a name and a value per line."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.core.roles import role_of
from postmortem.readers._miner import NONFINITE, NUMBER, number, position
from postmortem.readers.dialects import GLOBAL, Dialect, Record, Row, Value, dialect

_SCALE = {"K": 1e3, "M": 1e6, "B": 1e9}
_CELL = re.compile(rf"(?P<value>{NUMBER}|{NONFINITE})(?P<unit>%| ?[a-zA-Zµ]{{1,4}})?(?: \([\d.]+ ?%\))?$")


@dialect
class StableBaselines(Dialect):
    """Stable-Baselines3 (and rsl_rl-like boxes): ``| train/ |  |`` opens a group, ``|    loss | 46.6 |`` belongs to it.

    Format: stable_baselines3/common/logger.py, HumanOutputFormat. The tag is group + name, the step `time/total_timesteps` of the same box,
    so a box is handed over when it closes.
    """

    name = "stable-baselines3"
    priority = 23
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"[|\-]")
    _line = re.compile(rf"\| (?P<indent> *)(?P<name>[\w./@\- ]{{1,80}}?) *\| *(?P<value>{NUMBER}|{NONFINITE})? *\|$")

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
        steps = {v.tag.rsplit("/", 1)[-1]: v.number for v in values}
        step = next((steps[k] for k in ("total_timesteps", "total timesteps", "timesteps", "n_updates", "iterations", "step") if k in steps), None)
        record = Record([v for v in values if not v.tag.endswith("total_timesteps")])
        if step is not None:
            record.step, record.level = step, GLOBAL
        return record


@dialect
class Ultralytics(Dialect):
    """YOLO: a header ``Epoch GPU_mem box_loss …``, rows ``1/100 2.61G 1.411 …: 100% ━━━``, and a validation table with a row `all`.

    Format: ultralytics/engine/trainer.py. Values are means of the epoch so far, so the state at 100 % counts.
    """

    name = "ultralytics"
    priority = 24
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\s*(?:Epoch|Class|\d+/\d+|all) ")

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.validation: list[str] = []
        self.epoch: float | None = None

    def sniff(self, sample: str) -> bool:
        return "GPU_mem" in sample or "gpu_mem" in sample

    def parse(self, row: Row) -> Record | None:
        cells = row.text.split()
        if len(cells) < 4:
            return None
        if cells[0] == "Epoch" and cells[1].lower() == "gpu_mem":
            self.columns = cells
            return Record()
        if cells[0] == "Class" and "Images" in cells:
            self.validation = [c.rstrip(":") for c in row.text.split(": ")[0].split()]
            self.validation = [
                c[:-1] if c.endswith(")") and "(" not in c else c.replace("Box(", "").replace("Mask(", "mask ") for c in self.validation
            ]
            return Record()
        if cells[0] == "all" and self.validation:
            names = self.validation[3:]
            values = [Value(n, number(c)) for n, c in zip(names, cells[3:], strict=False) if _CELL.match(c)]
            return Record(values, epoch=self.epoch)
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
class ColumnTable(Dialect):
    """Rows under a header that names the columns: fastai, nerfstudio, PrettyTable, CSV on the terminal, hand-made tables.

    Columns are separated by two or more blanks, tabs, bars, or commas. A column named like a step or an epoch is the position.
    """

    name = "table"
    priority = 60
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\s*[|│┃]?\s*(?:-?\d|nan\b|[A-Za-z_#][^=]*$)")
    _name = re.compile(r"(?!.*(?:^|[ (:=])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?[%)]?(?: |$))[A-Za-z_#∇][\w ./@()%#\-\[\]|]{0,40}$")

    def __init__(self) -> None:
        self.header: dict[int, tuple[str, list[str]]] = {}

    def parse(self, row: Row) -> Record | None:
        text = row.text.strip()
        header = self.header.get(row.rank)
        if header is not None and (text[:1].isdigit() or text[:1] in "|│┃-.n"):
            sign, names = header
            cells = _cells(text, sign)
            if len(cells) == len(names):
                record = self._row(row.text, names, cells)
                if record is not None:
                    return record
        for sign in ("|", ",", "  "):
            if sign in text or (sign == "  " and "\t" in text):
                names = _cells(text, sign)
                if (
                    len(names) >= 3
                    and len(set(names)) == len(names)
                    and all(self._name.match(n) and len(n.split()) <= 5 for n in names)
                    and self._metrics(names)
                ):
                    self.header[row.rank] = (sign, names)
                    return Record()
        return None

    @staticmethod
    def _metrics(names: list[str]) -> bool:
        """At least one known quantity and one position, or two known quantities; no file listing, no table of layers."""
        known = sum(role_of(_clean(n)) is not None for n in names)
        places = sum((position(_clean(n)) or ("", 0))[0] in ("step", "epoch") for n in names)
        return known >= 2 or (known >= 1 and places >= 1)

    @staticmethod
    def _row(text: str, names: list[str], cells: list[str]) -> Record | None:
        record = Record()
        numbers = 0
        for name, cell in zip(names, cells, strict=True):
            name = _clean(name)
            match = _CELL.match(cell)
            where = position(name)
            if match is None:
                fraction = re.match(r"(\d{1,12})/(\d{1,12})$", cell)
                if fraction and where and where[0]:
                    if where[0] == "epoch":
                        record.epoch, record.epochs = float(fraction[1]), float(fraction[2])
                    else:
                        record.n, record.total, record.level = float(fraction[1]), float(fraction[2]), where[1]
                    numbers += 1
                continue
            numbers += 1
            value = number(match["value"])
            if where is not None:
                if where[0] == "epoch":
                    record.epoch = value
                elif where[0] == "step" and where[1] > record.level:
                    record.step, record.level = value, where[1]
                continue
            unit = (match["unit"] or "").strip()
            record.values.append(Value(name, value * _SCALE.get(unit, 1.0) if role_of(name) != "memory" else value))
        return record if numbers >= max(2, len(cells) // 2) and record.values else None


def _cells(text: str, sign: str) -> list[str]:
    if sign == "  ":
        return [c.strip() for c in re.split(r"\s{2,}|\t", text.strip())]
    return (
        [c.strip() for c in text.strip().strip("|│┃").split(sign)]
        if sign != "|"
        else [c.strip() for c in re.split(r"[|│┃]", text.strip().strip("|│┃"))]
    )


def _clean(name: str) -> str:
    """``Step (% Done)`` is the step."""
    return re.sub(r"\s*\(%[^)]*\)$", "", name)
