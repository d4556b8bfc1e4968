"""Decodes the bytes of a table or of a JSON file."""

from __future__ import annotations

import codecs

from postmortem.core.model import Problem

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


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
        what = f"bytes that are not {encoding.upper()}"
        problems.append(Problem(path=path, offset=error.start, what=what, kept="the text around them"))
    if nul := text.count("\0"):
        what = f"{nul} zero bytes, as a crashed machine leaves them"
        problems.append(Problem(path=path, offset=data.find(b"\0"), what=what, lost=f"{nul} bytes"))
        text = text.replace("\0", "")
    return text, problems
