"""Reads text logs and tables that logrotate, a logger or a user compressed."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from postmortem.core.model import Problem
from postmortem.core.reading import Reading
from postmortem.readers import READERS, content_of, reader
from postmortem.readers.shared.codecs import CODECS, Damaged, Truncated, codec_of
from postmortem.readers.shared.rotated import rotated
from postmortem.readers.text import TextReader, read_text
from postmortem.readers.text.lines.blocks import looks_like_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from postmortem.core.model import Extent
    from postmortem.readers import Content, Reader
    from postmortem.readers.shared.codecs import Codec

_LOGS = (".log", ".out", ".err", ".txt", ".stdout", ".stderr")
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
_HEAD = 4096
_LONGEST = 8 << 30
"""Bytes of text that are read; a small file may unpack to any size."""
_LONGEST_DOCUMENT = 64 << 20
"""Bytes of a JSON document that are unpacked to see whether it is a history."""


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
        if not is_packed_log(path.name) or (codec := _usable(path.name, head)) is None:
            return False
        text = _beginning(codec, path, head)
        return text is None or looks_like_text(text)

    @staticmethod
    def read(path: Path) -> Reading:
        """Unpacks the file and reads its text."""
        return _read(path, read_text)


@reader
class PackedTable:
    """A table of numbers compressed with gzip, xz, bzip2 or zstd: ``metrics.csv.gz``, ``log.jsonl.xz``,
    ``history.json.zst``.

    It is unpacked into a temporary file and read by the reader that takes the unpacked file, which is then the source.
    What can be unpacked of a cut or damaged file is kept. zstd needs the extra ``[zstd]``.

    Formats: those of compressed logs, and of CSV, JSON lines and JSON histories.
    """

    kind: ClassVar[str] = "packed-table"
    priority: ClassVar[int] = 45
    content: ClassVar[Content] = "table"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A compressed file whose text a reader of tables takes; or one that is damaged, which is reported."""
        if not is_packed_table(path.name) or (codec := _usable(path.name, head)) is None:
            return False
        beginning = _beginning(codec, path, head)
        if beginning is None:
            return True
        if _table_reader(path.with_name(_unpacked_name(path)), beginning) is not None:
            return True
        with _unpacked(path, _LONGEST_DOCUMENT) as (text, wrong):  # a JSON document is known by all of it
            return _table_reader(text, beginning) is not None or isinstance(wrong, Damaged)

    @staticmethod
    def read(path: Path) -> Reading:
        """Unpacks the file and reads its table."""
        return _read(path, _read_table)


def is_packed_log(name: str) -> bool:
    """Whether a file is called like a text log, or a part of one, that was compressed."""
    log, _, ending = name.lower().rpartition(".")
    return any(ending == codec.suffix[1:] for codec in CODECS) and (log.endswith(_LOGS) or rotated(log) is not None)


def is_packed_table(name: str) -> bool:
    """Whether a file is called like a table of numbers that was compressed."""
    table, _, ending = name.lower().rpartition(".")
    return any(ending == codec.suffix[1:] for codec in CODECS) and table.endswith(_TABLES)


def unpacked_head(name: str, head: bytes) -> bytes | None:
    """The first text of a packed log or table of this name that begins with `head`.

    Empty if it holds none, as logrotate leaves it; None if it is something else, or its first block is longer.
    """
    if not (is_packed_log(name) or is_packed_table(name)) or (codec := _usable(name, head)) is None:
        return None
    text = _first_text(codec, BytesIO(head))
    return text if text or len(head) < _HEAD else None


def _usable(name: str, head: bytes) -> Codec | None:
    codec = codec_of(name, head)
    return codec if codec is not None and codec.available else None


def _beginning(codec: Codec, path: Path, head: bytes) -> bytes | None:
    """The first text of the packed file `path`, see `_first_text`."""
    text = _first_text(codec, BytesIO(head))
    if not text and len(head) >= _HEAD:  # the first block is longer
        with path.open("rb") as packed:
            text = _first_text(codec, packed)
    return text


def _first_text(codec: Codec, packed: BinaryIO) -> bytes | None:
    """The first text that is unpacked: empty if the file holds none, None if it is damaged before."""
    try:
        return next(filter(None, codec.texts(packed)), b"")[:_HEAD]
    except Damaged:
        return None


def _table_reader(text: Path, head: bytes) -> type[Reader] | None:
    """The reader that takes an unpacked file that begins with `head`, if it is one of tables."""
    found = next((r for r in READERS if r.claims(text, head)), None)
    return found if found is not None and content_of(found) == PackedTable.content else None


def _read_table(text: Path) -> Reading:
    """The reading of an unpacked table; empty if nobody knows what it is, as when nothing could be unpacked."""
    with text.open("rb") as file:
        head = file.read(_HEAD)
    if (found := _table_reader(text, head)) is not None:
        return found.read(text)
    problem = Problem(path=str(text), what="no reader knows the table in it", lost="the file", extent="file")
    return Reading(source=PackedTable.kind, path=str(text), problems=[problem])


def _read(path: Path, read: Callable[[Path], Reading]) -> Reading:
    """What `read` reads of the unpacked file, under the name of the packed one, with what is wrong with that."""
    with _unpacked(path, _LONGEST) as (text, wrong):
        os.utime(text, (path.stat().st_atime, path.stat().st_mtime))  # the year of times without one
        reading = read(text)
        empty = not text.stat().st_size
    reading.path = str(path)
    reading.events = [replace(event, file=str(path)) for event in reading.events]
    reading.problems = [replace(problem, path=str(path)) for problem in reading.problems]
    if wrong is not None:
        # a checksum comes after the text that it is of, so some of that may be wrong
        kept = "nothing" if empty else "the text before it, of which the last part may be wrong if a byte is"
        extent: Extent = "file" if empty else "cut" if isinstance(wrong, Truncated) else "records"
        problem = Problem(path=str(path), what=str(wrong), kept=kept, lost="the rest of the file", extent=extent)
        reading.problems = [*([] if empty else reading.problems), problem]
    return reading


@contextmanager
def _unpacked(path: Path, longest: int) -> Iterator[tuple[Path, ValueError | None]]:
    """A temporary file with the first `longest` bytes of text, or a few more, and what is wrong with the packed one."""
    with path.open("rb") as packed, tempfile.TemporaryDirectory(prefix="postmortem-") as folder:
        codec = codec_of(path.name, packed.read(8))
        packed.seek(0)
        text = Path(folder) / (_unpacked_name(path) if codec else path.name)
        with text.open("wb") as out:
            wrong = (
                _unpack(codec, packed, out, longest)
                if codec and codec.available
                else ValueError("the file does not begin as its name says")
            )
        yield text, wrong


def _unpacked_name(path: Path) -> str:
    return path.name.rpartition(".")[0]


def _unpack(codec: Codec, packed: BinaryIO, out: BinaryIO, longest: int) -> ValueError | None:
    """Writes the text of a packed file; what is wrong with it, if anything is."""
    written = 0
    try:
        for text in codec.texts(packed):
            out.write(text)
            written += len(text)
            if written >= longest:
                return ValueError(f"unpacks to more than {longest >> 30} GiB")
    except Damaged as error:
        return error
    return None
