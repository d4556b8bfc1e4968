"""Reads text logs that logrotate or a user compressed."""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from postmortem.core.model import Problem
from postmortem.readers import reader
from postmortem.readers.text import TextReader, read_text
from postmortem.readers.text.lines.blocks import looks_like_text

if TYPE_CHECKING:
    from typing import BinaryIO

    from postmortem.core.reading import Reading
    from postmortem.readers import Content

_NAME = re.compile(r"\.(?:log|out|err|txt|stdout|stderr)(?:[.-]\d{1,8})?\.gz$", re.IGNORECASE)
_GZIP = 31
"""zlib's number for the gzip format, see zlib.decompressobj."""
_PIECE = 1 << 20
_LONGEST = 8 << 30
"""Bytes of text that are read; a small file may unpack to any size."""


@reader
class GzippedText:
    """A text log compressed with gzip: ``train.log.gz``, ``job.out.gz``, ``train.log.1.gz``.

    It is unpacked into a temporary file and read like any text. What can be unpacked of a cut
    or damaged file is kept.

    Format: RFC 1952.
    """

    kind: ClassVar[str] = "gzip"
    priority: ClassVar[int] = 890
    content: ClassVar[Content] = TextReader.content

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A name of a compressed log, and text in it."""
        if not (_NAME.search(path.name) and head.startswith(b"\x1f\x8b")):
            return False
        try:
            text = zlib.decompressobj(_GZIP).decompress(head, 4096)
        except zlib.error:
            return False
        return looks_like_text(text)

    @staticmethod
    def read(path: Path) -> Reading:
        """Unpacks the file and reads its text."""
        with tempfile.TemporaryDirectory(prefix="postmortem-") as folder:
            text = Path(folder) / path.name.removesuffix(".gz").removesuffix(".GZ")
            with path.open("rb") as packed, text.open("wb") as out:
                what = _unpack(packed, out)
            os.utime(text, (path.stat().st_atime, path.stat().st_mtime))  # the year of times without one
            reading = read_text(text)
        reading.path = str(path)
        reading.events = [replace(event, file=str(path)) for event in reading.events]
        reading.problems = [replace(problem, path=str(path)) for problem in reading.problems]
        if what:
            kept = "the text before it"
            reading.problems.append(Problem(path=str(path), what=what, kept=kept, lost="the rest of the file"))
        return reading


def _unpack(packed: BinaryIO, out: BinaryIO) -> str:
    """Writes the text of all members of a gzip file; what is wrong with it, empty if nothing is."""
    unpacker, rest, is_open, written = zlib.decompressobj(_GZIP), b"", False, 0
    while piece := rest or packed.read(_PIECE):
        try:
            text = unpacker.decompress(piece, _PIECE)
        except zlib.error as error:
            return f"damaged gzip data: {error}"
        out.write(text)
        written += len(text)
        if written >= _LONGEST:
            return f"unpacks to more than {_LONGEST >> 30} GiB"
        is_open = not unpacker.eof
        rest = unpacker.unconsumed_tail if is_open else unpacker.unused_data.lstrip(b"\0")
        if not is_open:
            unpacker = zlib.decompressobj(_GZIP)
    return "truncated: the gzip data has no end" if is_open else ""
