"""Decodes the bytes of a table or of a JSON file, and counts NUL bytes where text should be."""

from __future__ import annotations

import codecs
import errno
import os
from typing import TYPE_CHECKING

from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
LOST_IN_NULS = "what was written there, if anything"
"""All that is known to be lost where NUL bytes stand."""
_PIECE = 1 << 20


def leading_nuls(path: Path) -> int:
    """Number of NUL bytes at the start of a file; holes of a sparse file are skipped without reading them.

    A log that is truncated while its writer continues starts with as many of them as were written before.
    """
    with path.open("rb", buffering=0) as file:
        at = 0
        while True:
            at = _next_data(file.fileno(), at)
            file.seek(at)
            piece = file.read(_PIECE)
            text = piece.lstrip(b"\0")
            if text or not piece:
                return at + len(piece) - len(text)
            at += len(piece)


def _next_data(file: int, at: int) -> int:
    """Where a sparse file holds data again, from `at` on; its size where nothing follows."""
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except AttributeError:  # not on this system
        return at
    except OSError as error:  # ENXIO: nothing but a hole up to the end; else not with this file system
        return max(at, os.fstat(file).st_size) if error.errno == errno.ENXIO else at


def decoded(data: bytes, path: str = "") -> tuple[str, list[Problem]]:
    """The text of a whole file, and the problems with its bytes.

    The encoding is UTF-8, or that of the byte order mark. NUL bytes, which a crashed machine leaves where data never
    reached the disk, are removed.
    """
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    problems: list[Problem] = []
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        text = data.decode(encoding, "replace")
        what = f"bytes that are not valid {encoding.upper()}"
        problems.append(Problem(path=path, offset=error.start, what=what, kept="the text around them"))
    if nul := text.count("\0"):
        before = text[: text.index("\0")]
        where = data.find(b"\0") if encoding.startswith("utf-8") else len(before.encode(encoding))
        what = f"{nul} NUL bytes, as left by a system crash"
        problems.append(Problem(path=path, offset=where, what=what, lost=LOST_IN_NULS))
        text = text.replace("\0", "")
    return text, problems
