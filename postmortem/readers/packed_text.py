"""Reads text logs that logrotate or a user compressed."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from postmortem.core.model import Problem
from postmortem.readers import reader
from postmortem.readers.shared.codecs import CODECS, Damaged, codec_of
from postmortem.readers.shared.rotated import rotated
from postmortem.readers.text import TextReader, read_text
from postmortem.readers.text.lines.blocks import looks_like_text

if TYPE_CHECKING:
    from typing import BinaryIO

    from postmortem.core.reading import Reading
    from postmortem.readers import Content
    from postmortem.readers.shared.codecs import Codec

_ENDINGS = (".log", ".out", ".err", ".txt", ".stdout", ".stderr")
_HEAD = 4096
_LONGEST = 8 << 30
"""Bytes of text that are read; a small file may unpack to any size."""


@reader
class PackedText:
    """A text log compressed with gzip, xz, bzip2 or zstd: ``train.log.gz``, ``job.out.xz``, ``train.log.1.zst``.

    It is unpacked into a temporary file and read like any text. What can be unpacked of a cut
    or damaged file is kept. zstd needs the extra ``[zstd]``.

    Formats: RFC 1952, https://tukaani.org/xz/xz-file-format.txt, https://sourceware.org/bzip2, RFC 8878.
    """

    kind: ClassVar[str] = "packed"
    priority: ClassVar[int] = 890
    content: ClassVar[Content] = TextReader.content

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A name of a compressed log, and text in it; or nothing that can be unpacked, which its reading reports."""
        codec = codec_of(path.name, head)
        if codec is None or not codec.available or not is_packed_log(path.name):
            return False
        text = _first_text(codec, BytesIO(head))
        if not text and len(head) >= _HEAD:  # the first block is longer
            with path.open("rb") as packed:
                text = _first_text(codec, packed)
        return text is None or looks_like_text(text)

    @staticmethod
    def read(path: Path) -> Reading:
        """Unpacks the file and reads its text."""
        with path.open("rb") as packed, tempfile.TemporaryDirectory(prefix="postmortem-") as folder:
            codec = codec_of(path.name, packed.read(8))
            packed.seek(0)
            text = Path(folder) / (path.name[: -len(codec.suffix)] if codec else path.name)
            with text.open("wb") as out:
                what = (
                    _unpack(codec, packed, out)
                    if codec and codec.available
                    else "the file does not begin as its name says"
                )
            os.utime(text, (path.stat().st_atime, path.stat().st_mtime))  # the year of times without one
            reading = read_text(text)
            empty = not text.stat().st_size
        reading.path = str(path)
        reading.events = [replace(event, file=str(path)) for event in reading.events]
        reading.problems = [replace(problem, path=str(path)) for problem in reading.problems]
        if what:
            # a checksum comes after the text that it is of, so some of that may be wrong
            kept = "nothing" if empty else "the text before it, of which the last part may be wrong if a byte is"
            problem = Problem(path=str(path), what=what, kept=kept, lost="the rest of the file")
            reading.problems = [*([] if empty else reading.problems), problem]
        return reading


def is_packed_log(name: str) -> bool:
    """Whether a file is called like a text log, or a part of one, that was compressed."""
    log, _, ending = name.lower().rpartition(".")
    return any(ending == codec.suffix[1:] for codec in CODECS) and (log.endswith(_ENDINGS) or rotated(log) is not None)


def is_empty_log(name: str, head: bytes) -> bool:
    """Whether a file of this name, which begins with `head`, is a packed log without any text, as logrotate makes."""
    codec = codec_of(name, head)
    packed = codec is not None and codec.available and is_packed_log(name) and len(head) < _HEAD
    return packed and codec is not None and _first_text(codec, BytesIO(head)) == b""


def _first_text(codec: Codec, packed: BinaryIO) -> bytes | None:
    """The first text that is unpacked: empty if the file holds none, None if it is damaged before."""
    try:
        return next(filter(None, codec.texts(packed)), b"")[:_HEAD]
    except Damaged:
        return None


def _unpack(codec: Codec, packed: BinaryIO, out: BinaryIO) -> str:
    """Writes the text of a packed file; what is wrong with it, empty if nothing is."""
    written = 0
    try:
        for text in codec.texts(packed):
            out.write(text)
            written += len(text)
            if written >= _LONGEST:
                return f"unpacks to more than {_LONGEST >> 30} GiB"
    except Damaged as error:
        return str(error)
    return ""
