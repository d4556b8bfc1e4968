"""Decodes the bytes of a table or of a JSON file, and counts NUL bytes where text should be."""

from __future__ import annotations

import codecs
import errno
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path

_WIDE_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
FOUR_NULS = b"\0" * 4
"""Fewer at the start of a file may be part of a character in a wide encoding."""
_HOLES = re.compile("\0+")
TRUNCATED_OR_CRASHED = "the file was truncated while it was written, or the system crashed"
"""What NUL bytes at the start of a file mean."""
LOST_IN_NULS = "what was written there, if anything"
"""All that is known to be lost where NUL bytes stand."""
_A_ROW = 200
"""Bytes of a row of a log or two."""
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


def nul_problem(
    path: str, count: int, offset: int, line: int | None = None, *, places: int, at_end: bool, width: int = 1
) -> Problem:
    """The problem of `count` NULs of `width` bytes inside a text, or `at_end` of it; the first is at byte `offset`."""
    number = "1 NUL byte" if count == 1 else f"{count} NUL bytes"
    after = offset + count * width
    several = " or from several programs that write to the file" if places > 1 else ""
    if places > 1:
        where, kept = f" in {places} places, the first at byte {offset}", "the text before, between and after them"
    else:
        where = f", at byte {offset}" if count == 1 else f", from byte {offset} to byte {after - 1}"
        kept = f"the text before byte {offset}" + ("" if at_end else f" and from byte {after} on")
    return Problem(
        path=path,
        offset=offset,
        line=line,
        what=f"{number} in the text{where}, possibly from a system crash" + several,
        kept=kept,
        lost=LOST_IN_NULS if count > 3 else "",
        extent="row" if count <= _A_ROW else "records",
    )


def leading_nul_problem(path: str, count: int) -> Problem:
    """The problem of `count` NUL bytes before a text, as in a log that was truncated while its writer continued."""
    what = f"{count} NUL bytes before the text: {TRUNCATED_OR_CRASHED}"
    return Problem(path=path, offset=0, what=what, kept="the text after them", lost=LOST_IN_NULS, extent="cut")


def wide_encoding(head: bytes) -> str | None:
    """A wide encoding, by its byte order mark or by where its NUL bytes are; None for UTF-8 and its subsets."""
    if mark := next((name for mark, name in _WIDE_MARKS.items() if head.startswith(mark)), None):
        return mark
    sample = head[: min(512, len(head) // 4 * 4)]
    if len(sample) < 16 or b"\0" not in sample:
        return None
    first, second, third, fourth = (sample[i::4].count(0) / len(sample[i::4]) for i in range(4))
    if min(third, fourth) > 0.9 and first < 0.1:
        return "utf-32-le"
    if min(first, second) > 0.9 and fourth < 0.1:
        return "utf-32-be"
    even, odd = (first + third) / 2, (second + fourth) / 2
    if odd > 0.4 and even < 0.1:
        return "utf-16-le"
    return "utf-16-be" if even > 0.4 and odd < 0.1 else None


def begins_with_nuls(path: Path) -> bool:
    """Whether a file begins with NUL bytes that are not part of a character."""
    with path.open("rb") as file:
        return file.read(len(FOUR_NULS)) == FOUR_NULS


@lru_cache(maxsize=4)
def head_text(head: bytes) -> str:
    """The text of the first bytes of a file, which several readers ask for one after the other."""
    return decoded(head)[0]


def decoded(data: bytes, path: str = "") -> tuple[str, list[Problem]]:
    """The text of a whole file, and the problems with its bytes.

    The encoding is UTF-8 or what `wide_encoding` finds. NUL bytes that are not part of the encoding are removed.
    """
    problems: list[Problem] = []
    start = len(data) - len(data.lstrip(b"\0")) if data.startswith(FOUR_NULS) else 0
    if 0 < start < len(data):
        problems.append(leading_nul_problem(path, start))
        data = data[start:]
    else:
        start = 0
    wide = wide_encoding(data)
    encoding = wide or ("utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        text = data.decode(encoding, "replace")
        what = f"bytes that are not valid {encoding.upper()}"
        problems.append(Problem(path=path, offset=start + error.start, what=what, kept="the text around them"))
    if nuls := text.count("\0"):
        before = text[: text.index("\0")]
        offset = len(before.encode(wide, "replace")) if wide else data.index(b"\0")
        width = int(wide[4:6]) // 8 if wide else 1  # utf-16-le
        holes, at_end = len(_HOLES.findall(text)), not text.rpartition("\0")[2].strip()
        problems.append(nul_problem(path, nuls, start + offset, places=holes, at_end=at_end, width=width))
        text = text.replace("\0", "")
    return text, problems
