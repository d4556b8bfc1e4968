"""Runs from a pandas DataFrame that the user has at hand: an export of a tracker, a table read by other means."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.errors import UsageError
from postmortem.core.model import Source
from postmortem.core.reading import Reading
from postmortem.core.run import Run, Stream, segments, without_tag
from postmortem.core.skipped import Skip, Skips
from postmortem.readers.shared.json_numbers import written_number
from postmortem.readers.shared.long_rows import LongRows
from postmortem.readers.shared.row_table import TELLING, RowTable, finish, iso_time
from postmortem.readers.shared.step_column import EPOCHS, counter_names, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

_RUNS = ("run", "run_id", "run_name", "experiment", "trial")
_OWN = {"source", "rank", "segment", "tag", "step", "value"}  # columns of `Run.frame`
_NAMES = ("metric", "name", "tag", "key", "measure", "variable", "metric_name")
_DENSE = 5  # rows in succession that a column has to fill for a later NaN to count as logged


def is_frame(given: object) -> bool:
    """Whether `given` is a pandas DataFrame; pandas is not imported for the answer."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def runs_of(frame: pd.DataFrame, *, roles: Mapping[str, str] | None = None) -> list[Run]:
    """The runs of a table, wide (a column per metric) or long (columns such as `tag` and `value`), in order.

    Steps are in a column that counts (step, global_step, iteration, …), or in the index under such a name; else the
    epoch, else the row. A column `run` (run_id, run_name, experiment, trial) tells runs apart. In a wide table NaN is
    both a value and an empty cell: it counts as logged in a column that was filled row by row until then, among rows
    of its kind; the notes say which. `Run.frame` comes back as it was. UsageError for a table without numbers in it
    or without a column that counts.
    """
    table = _flat(frame)
    if not (counter_names(table.columns) or any(plain(name) in EPOCHS for name in table.columns)):
        raise UsageError(
            f"the frame has no step column (step, epoch, …); its columns: {', '.join(table.columns)[:200]}"
        )
    several = next((name for name in table.columns if plain(name) in _RUNS), None)
    if several is None:
        return [_run(table, "frame", roles)]
    named = table.groupby(several, sort=False, observed=True, dropna=False)
    return [_run(part.drop(columns=several), str(name), roles) for name, part in named]


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with one level of column names, all text, and with its named indices as columns."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index(level=[n for n in frame.index.names if n is not None and n not in frame.columns])
    labels: list[Any] = list(frame.columns)
    names = [".".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in labels]
    return frame.set_axis([name.strip(".") for name in names], axis=1)


def _run(table: pd.DataFrame, name: str, roles: Mapping[str, str] | None) -> Run:
    own = set(table.columns) >= _OWN
    if own and (table["rank"] < 0).all():
        table = table.drop(columns="rank")
    parts = table.groupby("source", sort=False, observed=True) if own else [("frame", table)]
    readings = [_reading(part.drop(columns=["source", "segment"], errors="ignore"), str(s), own) for s, part in parts]
    streams = [Stream(r.source, "", r.points, *segments(r.points)) for r in readings if len(r.points)]
    skipped = Skips()
    for reading in readings:
        skipped.add(reading.skipped)
    tags = {tag for stream in streams for tag in stream.points.tags}
    axes = {reading.step_axis for reading in readings}
    return Run(
        name=name,
        path=Path(name),
        streams=streams,
        event_list=[],
        problems=[problem for reading in readings for problem in reading.problems],
        sources=[Source(kind=r.source, files=(), points=len(r.points)) for r in readings],
        step_axis=axes.pop() if len(axes) == 1 and axes <= {"row", "epoch"} else "step",
        notes=[note for reading in readings for note in reading.notes] + without_tag(roles or {}, tags),
        skipped=skipped,
        role_overrides=dict(roles or {}),
        readings=readings,
    )


def _reading(table: pd.DataFrame, source: str, own: bool) -> Reading:
    """The numbers of one table; `own` if every NaN in it is a value."""
    reading = Reading(source=source, path=source)
    rows, long_rows = RowTable(), LongRows()
    is_long = LongRows.apply(table.columns)
    if not own:
        table = _without_empty_cells(table, reading, is_long=is_long)
    times: list[float] = []
    names = list(table.columns)
    telling = {name for name in names if plain(name) in TELLING}
    for number, cells in enumerate(table.itertuples(index=False, name=None), 1):
        named: Mapping[str, Any] = dict(zip(names, cells, strict=True))
        numbers, time = [], math.nan
        for key, cell in (long_rows.renamed(named) if is_long else named).items():
            value = _number(cell)
            if value is not None and not (key in telling and math.isnan(value)):
                numbers.append((key, value))
            elif isinstance(cell, datetime) and cell == cell:
                time = (cell if cell.tzinfo else cell.replace(tzinfo=UTC)).timestamp()
            elif cell is None or cell != cell or cell == "":
                rows.blanks[key] += 1
            elif (moment := iso_time(str(cell))) is not None:
                time = moment
            else:
                rows.add_text(key, number, str(cell))
        rows.add(numbers)
        times.append(time)
    finish(reading, rows, times)
    if texts := rows.text_columns():
        reading.skipped[Skip.CELLS] = sum(texts.values())
        reading.notes.append(f"text columns: {', '.join(sorted(texts))}")
    return reading


def _number(cell: Any) -> float | None:
    """The number in a cell; None for anything else, of which an empty cell is one."""
    if isinstance(cell, Real):
        return float(cell)
    return written_number(cell) if isinstance(cell, str) else None


def _without_empty_cells(table: pd.DataFrame, reading: Reading, *, is_long: bool) -> pd.DataFrame:
    """The table with None in cells whose NaN says only that nothing was logged there."""
    numbers = [i for i, name in enumerate(table.columns) if _may_hold_nan(table, i) and plain(name) not in TELLING]
    empty: NDArray[np.bool_] = np.array(table.isna(), bool)
    filled = ~empty[:, numbers]
    for k, i in enumerate(numbers):
        own = filled[:, k]
        if own.all():
            continue
        if is_long:
            logged = _logged_by_name(table, own)
        else:
            apart = filled.T.astype(np.float32) @ own.astype(np.float32) == 0  # never filled in one row with it
            logged = _logged(own, ~np.any(filled[:, apart], axis=1))
        empty[:, i] &= ~logged
        for n, what in ((int((logged & ~own).sum()), "logged"), (int(empty[:, i].sum()), "an empty cell")):
            if n:
                reading.notes.append(f"{table.columns[i]}: NaN in {n} rows is taken as {what}")
    return table.astype(object).mask(empty, None)


def _may_hold_nan(table: pd.DataFrame, column: int) -> bool:
    return str(table.dtypes.iloc[column]).lower().startswith("float")


def _logged_by_name(table: pd.DataFrame, filled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """As `_logged`, for each metric of a long table by itself; one that has a number at a step has no NaN there."""
    counter = next(iter(counter_names(table.columns)), None)
    step = table[counter].to_numpy() if counter else np.arange(len(table))
    by = next((name for name in table.columns if plain(name) in _NAMES), None)
    logged = np.zeros(len(table), bool)
    groups = table.groupby(by, sort=False, observed=True).indices.values() if by else [np.arange(len(table))]
    for rows in groups:
        own = filled[rows]
        logged[rows] = _logged(own, own | ~np.isin(step[rows], step[rows][own]))
    return logged


def _logged(filled: NDArray[np.bool_], its_kind: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[n]: the rows in which a column was logged, be it as NaN.

    `filled` bool[n] says where it holds a number, `its_kind` bool[n] which rows are of the kind in which it is logged.
    A column that fills its rows one by one until the first NaN goes on being logged; one with gaps is logged rarely.
    """
    rows = np.flatnonzero(its_kind)
    own = filled[rows]
    start = int(np.argmax(own)) if own.any() else 0
    unbroken = int(np.argmin(own[start:])) if not own[start:].all() else len(own) - start
    logged = filled.copy()
    if unbroken >= _DENSE:
        logged[rows[start:]] = True
    return logged
