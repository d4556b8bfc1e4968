"""Zip archives that torch writes, as a file or part of a file: the places of records, and their checksums."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

_LIMIT = 64 * 2**20
_PIECE = 2**22
_FLAGS = 0x0808  # names in UTF-8, sizes after the bytes: those that torch writes; others are of encryption and patches


class Part(io.RawIOBase):
    """A part of a file as a file: zipfile searches the directory at the end, where other archives may follow."""

    def __init__(self, f: BinaryIO, base: int, size: int) -> None:
        self._f, self._base, self.size, self._at = f, base, size, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise ValueError("truncated or corrupt: the directory of the zip archive points before its beginning")
        self._at = at
        return at

    def read(self, n: int = -1) -> bytes:
        left = max(0, self.size - self._at)
        self._f.seek(self._base + self._at)
        data = self._f.read(left if n < 0 else min(n, left))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def data_offset(f: Part, info: zipfile.ZipInfo) -> int:
    """The offset of a record's bytes: after its local header, whose name and extra field vary in length."""
    f.seek(info.header_offset)
    magic, name, extra = struct.unpack("<4s22xHH", f.read(30))
    if magic != b"PK\x03\x04":
        raise ValueError(f"truncated or corrupt: record {info.filename.partition('/')[2]} has no local header")
    return int(info.header_offset) + 30 + int(name) + int(extra)


def check_records(archive: zipfile.ZipFile, f: Part) -> None:
    """Raises ValueError if directory and local headers are not those that torch writes: Python's reader accepts more
    than that of torch, which refuses archives in several parts, encrypted records and contradictory sizes.

    Source: mz_zip_reader_read_central_dir in miniz.c of PyTorch, and section 4.3 of PKWARE's APPNOTE.
    """
    _check_end(len(archive.infolist()), archive.start_dir, f)
    for info in archive.infolist():
        f.seek(info.header_offset)
        magic, method, name = struct.unpack("<4s4xH16xH2x", f.read(30))
        same = (magic, method, f.read(name)) == (b"PK\x03\x04", info.compress_type, info.orig_filename.encode())
        stored = method != zipfile.ZIP_STORED or info.compress_size == info.file_size
        if not (same and stored) or info.volume or info.flag_bits & ~_FLAGS:
            raise ValueError(f"corrupt: record {info.filename.partition('/')[2]} has no valid header")
        if info.header_offset + 30 + info.compress_size > f.size:
            raise ValueError(f"truncated: record {info.filename.partition('/')[2]} exceeds the file")


def _check_end(count: int, start: int, f: Part) -> None:
    """Checks the length of the directory of `count` records at `start`, and what follows it: the end record, and in
    most files before it the 64-bit one with its locator."""
    f.seek(start)
    rest = f.read()
    at = 0
    for _ in range(count):
        at += 46 + sum(struct.unpack_from("<HHH", rest, at + 28))  # name, extra field, comment
    end = rest[at:]
    small = *(min(count, 0xFFFF),) * 2, min(at, 0xFFFFFFFF), min(start, 0xFFFFFFFF)
    expected = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, *small, 0)
    if len(end) > len(expected):
        sizes = struct.pack("<IIQQQQ", 0, 0, count, count, at, start)
        large = struct.pack("<4sQ", b"PK\x06\x06", 44) + end[12:16] + sizes  # the versions of the format may differ
        expected = large + struct.pack("<4sIQI", b"PK\x06\x07", 0, start + at, 1) + expected
    if end != expected:
        raise ValueError("corrupt: the end of the zip archive is not as torch writes it")


def check_sums(archive: zipfile.ZipFile, f: Part, *, large: bool = False) -> int:
    """Raises ValueError with the record whose checksum does not match. If no record matches, the archive was written
    without checksums, which is no error.

    torch.load checks no checksums. Of an archive of more than 64 MiB they are compared only if `large` is set, as this
    takes several times as long as looking for non-finite values; returned is the number of bytes left out for that.
    """
    if f.size > _LIMIT and not large:
        return f.size
    wrong, right, left = [], 0, 2 * max(f.size, _LIMIT)
    for info in archive.infolist():
        left -= min(info.file_size, f.size)
        if left < 0:
            raise ValueError("its records overlap")
        if _crc(f, data_offset(f, info), info.file_size) == info.CRC:
            right += 1
        else:
            wrong.append(info.filename.partition("/")[2])
    if wrong and right:
        raise ValueError(f"the checksum of record {wrong[0]} does not match")
    return 0


def _crc(f: Part, start: int, size: int) -> int:
    """The checksum of `size` bytes from `start`, in memory of one piece."""
    f.seek(start)
    crc = 0
    while size > 0 and (data := f.read(min(size, _PIECE))):
        crc = zlib.crc32(data, crc)
        size -= len(data)
    return crc


def check_file(f: BinaryIO, size: int, base: int = 0) -> None:
    """`check_sums` of an archive of any size in f[base : base + size]. ValueError or BadZipFile if it is damaged."""
    part = Part(f, base, size)
    with zipfile.ZipFile(part) as archive:
        check_sums(archive, part, large=True)
