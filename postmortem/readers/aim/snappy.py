"""Unpacks a block that is compressed with Snappy.

Format: https://github.com/google/snappy/blob/main/format_description.txt.
"""

from __future__ import annotations

from postmortem.readers.aim.bits import DamagedError, varint

_LARGEST = 1 << 28
"""Bytes of an unpacked block: the tables of Aim have blocks of 4 KiB, or of one value."""


def unpacked(data: bytes) -> bytes:
    """The bytes that `data` holds. DamagedError if it is no block of Snappy."""
    size, at = varint(data, 0)
    if size > _LARGEST:
        raise DamagedError(f"a block of {size} bytes")
    out = bytearray()
    try:
        while at < len(data):
            tag = data[at]
            at += 1
            if tag & 3 == 0:
                length = (tag >> 2) + 1
                if length > 60:
                    more = length - 60
                    length = int.from_bytes(data[at : at + more], "little") + 1
                    at += more
                out += data[at : at + length]
                at += length
                continue
            if tag & 3 == 1:
                length, distance = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
                at += 1
            else:
                width = 2 if tag & 3 == 2 else 4
                length, distance = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
                at += width
            begin = len(out) - distance
            if begin < 0 or not distance:
                raise DamagedError("a copy from before the block")
            if distance >= length:
                out += out[begin : begin + length]
            else:  # the copy runs into itself: what lies there repeats
                out += (out[begin:] * (length // distance + 1))[:length]
            if len(out) > size:
                break
    except IndexError:
        raise DamagedError("a compressed block that ends too early") from None
    if at > len(data):
        raise DamagedError("a compressed block that ends too early")
    if len(out) != size:
        raise DamagedError(f"a block of {len(out)} bytes instead of {size}")
    return bytes(out)
