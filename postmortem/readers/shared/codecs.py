"""Unpacks gzip, xz, bzip2 and zstd piece by piece, and keeps what comes before damage."""

from __future__ import annotations

import bz2
import importlib.util
import lzma
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 1 << 20
_ZSTD_PIECE = 1 << 11
"""Bytes given to zstd at once: it has no limit of its output, and packs up to 32,768 bytes of text in one."""


class Damaged(ValueError):
    """Packed data that cannot be unpacked from some place on; the message says what is wrong with it."""


class Truncated(Damaged):
    """Packed data without its end."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One way of packing: its name, the ending of its files, their first bytes, and what unpacks one stream of them.

    `new` returns an object with `unpack(data)`, which yields text, `eof` and `unused_data` (the bytes after the end).
    """

    name: str
    suffix: str
    magic: bytes
    new: Callable[[], Any]
    needs: str = ""
    """The package that unpacks it where that is an extra."""

    @property
    def available(self) -> bool:
        """Whether files of this kind can be unpacked here."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None

    def texts(self, packed: BinaryIO) -> Iterator[bytes]:
        """The text of all streams of a file (`cat a.gz b.gz` makes two), in pieces of about 1 MiB. Raises Damaged."""
        unpacker, is_open = self.new(), False
        while piece := packed.read(PIECE):
            while piece := piece.lstrip(b"\0") if not is_open else piece:  # NUL bytes pad the end of a stream
                is_open = True
                yield from unpacker.unpack(piece)
                piece = b""
                if unpacker.eof:
                    piece, unpacker, is_open = unpacker.unused_data, self.new(), False
        if is_open:
            raise Truncated(f"truncated: the {self.name} data has no end")


class _Gzip:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(31)  # zlib's number for the gzip format

    def unpack(self, data: bytes) -> Iterator[bytes]:
        while data:
            try:
                text = self._zlib.decompress(data, PIECE)
            except zlib.error as error:
                raise Damaged(f"damaged gzip data: {error}") from error
            yield text
            data = self._zlib.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data


class _Stdlib:
    """xz and bzip2, whose classes are alike."""

    def __init__(self, name: str, unpacker: Any) -> None:
        self._name, self._unpacker = name, unpacker

    def unpack(self, data: bytes) -> Iterator[bytes]:
        while True:
            try:
                text = self._unpacker.decompress(data, PIECE)
            except (OSError, lzma.LZMAError, ValueError) as error:  # OSError: of bzip2
                raise Damaged(f"damaged {self._name} data: {error}") from error
            yield text
            if self._unpacker.eof or self._unpacker.needs_input:
                return
            data = b""

    @property
    def eof(self) -> bool:
        return bool(self._unpacker.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._unpacker.unused_data)


class _Zstd:
    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor().decompressobj()
        self.unused_data = b""

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _ZSTD_PIECE):
            try:
                yield self._unpacker.decompress(data[at : at + _ZSTD_PIECE])
            except self._error as error:
                raise Damaged(f"damaged zstd data: {error}") from error
            if self.eof:
                self.unused_data = self._unpacker.unused_data + data[at + _ZSTD_PIECE :]
                return

    @property
    def eof(self) -> bool:
        return bool(self._unpacker.eof)


CODECS = (
    Codec("gzip", ".gz", b"\x1f\x8b", _Gzip),
    Codec("xz", ".xz", b"\xfd7zXZ\0", lambda: _Stdlib("xz", lzma.LZMADecompressor(lzma.FORMAT_XZ))),
    Codec("bzip2", ".bz2", b"BZh", lambda: _Stdlib("bzip2", bz2.BZ2Decompressor())),
    Codec("zstd", ".zst", b"\x28\xb5\x2f\xfd", _Zstd, needs="zstandard"),
)


def codec_of(name: str, head: bytes) -> Codec | None:
    """How a file with this name and these first bytes is packed, None if they do not agree on one way."""
    return next((c for c in CODECS if name.lower().endswith(c.suffix) and head.startswith(c.magic)), None)
