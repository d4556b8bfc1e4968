"""A run's numbers as a table in a file: CSV, or Parquet with pyarrow."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, BinaryIO

from postmortem.core.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.run import Run

CSV_HEADER = "run,source,rank,segment,tag,step,wall_time,value"
"""The columns of `Run.frame`: the first line of each CSV file that is written here."""


def writer_of(name: str) -> Callable[[Run, BinaryIO], None]:
    """The function that writes a run into a file of this name: ``.csv`` or ``.parquet``.

    UsageError for another ending, MissingExtra for Parquet without pyarrow.
    """
    if name.lower().endswith(".csv"):
        return write_csv
    if not name.lower().endswith(".parquet"):
        raise UsageError(f"{name}: the name of the file must end in .csv or .parquet")
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("export to Parquet", "parquet")
    return write_parquet


def write_csv(run: Run, out: BinaryIO) -> None:
    """The rows of `Run.frame`; numbers have all their digits, and are ``nan``, ``inf`` or ``-inf`` if not finite."""
    run.frame.to_csv(
        out, mode="wb", index=False, na_rep="nan", lineterminator="\n", encoding="utf-8", errors="backslashreplace"
    )


def write_parquet(run: Run, out: BinaryIO) -> None:
    """The rows of `Run.frame`, text as dictionaries. A NaN in `value` is a NaN; an unknown `wall_time` is null."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {}
    for name, column in run.frame.items():
        if column.dtype == "category":
            names = [str(n).encode("utf-8", "backslashreplace").decode() for n in column.cat.categories]
            codes = column.cat.codes.to_numpy(np.int32)
            columns[str(name)] = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))
        else:
            # pyarrow makes a null of each NaN if it is told that the values are of pandas
            columns[str(name)] = pa.array(column.to_numpy(), from_pandas=name == "wall_time")
    parquet.write_table(pa.table(columns), out)
