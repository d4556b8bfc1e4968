"""Text logs: what a training printed to its terminal, a Slurm ``.out``, a logger's file.

A dialect or the general miner parses each row; rows that differ only in their numbers are parsed once (`bulk`). Steps
are settled at the end, over the whole file (`steps.resolve`). Lines that may matter are passed to the search for
failures (`failures`). All this is imported when the first text is read: a scan of other files needs none of it.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, ClassVar

from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_numbers import written_number
from postmortem.readers.shared.rotated import NAMED_LOG, rotated
from postmortem.readers.text.dialects import DIALECTS
from postmortem.readers.text.lines.blocks import looks_like_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from postmortem.core.reading import Reading
    from postmortem.readers import Content
    from postmortem.readers.text.dialects import Dialect

__all__ = ["DIALECTS", "read_text"]

_ENDINGS = {".out", ".log", ".err", ".txt", ".stdout", ".stderr", ".info", ".warning", ".error", ""}
_NAME = re.compile(r"[A-Za-z_][\w./ -]*")
_CODE = re.compile(rb"^(?:import|from|def|class) \w", re.MULTILINE)
_LONGEST_SOURCE = 1 << 20


@reader
class TextReader:
    """Any readable text that ends in .out, .log, .err, .txt, .stdout or .stderr, in the level of a log of glog or absl
    (``train_worker0.INFO``, ``train.host.me.log.INFO.20261019-070122.512``), or has no ending; the output of a job of
    Grid Engine or PBS (``train.o8812034``, ``train.e8812034``); parts of such a log that a logger or logrotate set
    aside (``train.log.1``, ``train.log.2024-05-01``); a .tsv or .csv without a header whose rows name their values."""

    kind: ClassVar[str] = "text"
    priority: ClassVar[int] = 900
    content: ClassVar[Content] = "output"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        is_log = path.suffix.lower() in _ENDINGS or NAMED_LOG.search(path.name) or rotated(path.name)
        return bool(is_log or _pairs(path, head)) and looks_like_text(head) and not _is_source(path, head)

    @staticmethod
    def read(path: Path) -> Reading:
        return read_text(path)


def _pairs(path: Path, head: bytes) -> bool:
    """Whether a file that is called a table has no header, and each row names its values: ``step 3 loss 0.5``, with
    tabs."""
    if path.suffix.lower() not in (".tsv", ".csv"):
        return False
    first = decoded(head)[0].split("\n", 1)[0].rstrip("\r")
    cells = first.split("\t")
    named = all(_NAME.fullmatch(cell.strip()) for cell in cells[::2])
    return (
        len(cells) >= 4
        and len(cells) % 2 == 0
        and named
        and all(written_number(cell) is not None for cell in cells[1::2])
    )


def read_text(path: Path, dialects: Iterable[type[Dialect]] | None = None, *, fast: bool = True) -> Reading:
    """Read a text log with these dialects (default: all registered ones) and the general miner.

    With `fast` False every row is parsed on its own: the same reading, slowly, for tests.
    """
    from postmortem.readers.text.log_file import LogFile

    return LogFile(path, DIALECTS if dialects is None else dialects, fast).read()


def _is_source(path: Path, head: bytes) -> bool:
    """Whether a file is Python source code from its first to its last line; logs may begin with it."""
    if _CODE.search(head) is None or path.stat().st_size > _LONGEST_SOURCE:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escape sequences
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) for node in tree.body)
