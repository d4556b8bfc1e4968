"""Tables of numbers without a line of names: ``np.savetxt("train_loss.txt", losses)``, Torch7's optim.Logger."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from postmortem.core.roles import role_of
from postmortem.readers.shared.decode import head_text
from postmortem.readers.shared.json_numbers import written_number

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIXES = (".csv", ".tsv", ".txt", ".log", ".dat")
_HEAD = 4096
"""Bytes from which a reader decides."""
_FEWEST = 8
"""Rows that make a table; fewer may be anything."""
_MOST = 12
"""Columns of metrics that one file holds; more are data."""
_DECIMALS = 0.5
"""The share of rows with a decimal: labels and counts have none."""
_ERROR = re.compile(r"(?i)\berr(?:or)?$")
_WANTED = ("loss", "val_loss", "accuracy", "val_accuracy", "perplexity", "reward", "lr", "grad_norm")


class BareColumns(NamedTuple):
    """The names of the columns, what stands between them, and the lines before the numbers."""

    names: tuple[str, ...]
    separator: str
    before: int


def bare_columns(path: Path, head: bytes) -> BareColumns | None:
    """The columns of a file of nothing but numbers, whose name or first line names a metric; None for any other file.

    The first line is a name where it is one cell for one column, as Torch7 writes it. A first column that counts the
    rows is read elsewhere.
    """
    if path.suffix.lower() not in _SUFFIXES:
        return None
    lines = [line for line in head_text(head).splitlines() if line.strip()]
    lines = lines[: -1 if len(head) >= _HEAD else None]  # the last one may be cut
    if len(lines) < _FEWEST:
        return None
    before = int(not _cells(lines[0], _between(lines[0])))
    rows = lines[before:]
    separator = _between(rows[0])
    width = len(_cells(rows[0], separator))
    if not 0 < width <= (1 if before else _MOST) or len(rows) < _FEWEST:
        return None
    cells = [_cells(row, separator) for row in rows]
    if any(len(row) != width for row in cells) or _counts([row[0] for row in cells]):
        return None
    if sum(re.search(r"[.eEn]", row) is not None for row in rows) < _DECIMALS * len(rows):
        return None
    name = lines[0].strip(" \t%#,;") if before else path.stem
    if role_of(name) not in _WANTED and not _ERROR.search(name):
        return None
    names: tuple[str, ...] = (name,) if width == 1 else tuple(f"{name} {i}" for i in range(1, width + 1))
    ends = rows[0].rstrip(" \r\n").endswith(separator) if separator.strip(" ") else False
    return BareColumns((*names, "column 2") if ends else names, separator, before)


def _between(line: str) -> str:
    """What separates the cells of a line."""
    return next((s for s in ("\t", ";", ",") if s in line), " ")


def _cells(line: str, separator: str) -> list[float]:
    """The numbers of a line; none where a cell is no number. One separator may end the line."""
    cells = [cell.strip() for cell in line.strip().removesuffix(separator).split(separator)]
    numbers = [number for cell in cells if (number := written_number(cell)) is not None]
    return numbers if len(numbers) == len(cells) else []


def _counts(first: list[float]) -> bool:
    """Whether a column rises evenly by whole numbers."""
    moves = [b - a for a, b in pairwise(first)]
    usual = max(set(moves), key=moves.count)
    return usual > 0 and moves.count(usual) >= 0.8 * len(moves) and all(value.is_integer() for value in first)
