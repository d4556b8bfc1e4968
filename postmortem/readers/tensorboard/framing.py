"""One record of a TFRecord file: its header and its payload.

A record is a little-endian uint64 length, the masked CRC32C of these 8 bytes, the payload, and the payload's masked
CRC32C (tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from postmortem.readers.shared.crc32c import masked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER, OVERHEAD = 12, 16
_HEADER = struct.Struct("<QI")


def length_at(data: NDArray[np.uint8], pos: int) -> int | None:
    """The length in the header at `pos`, or None if there is no valid header."""
    if len(data) - pos < HEADER:
        return None
    header = data[pos : pos + HEADER].tobytes()
    length, crc = _HEADER.unpack(header)
    return int(length) if masked(header[:8]) == crc else None


def payload_at(data: NDArray[np.uint8], start: int, length: int) -> NDArray[np.uint8] | None:
    """The payload of `length` bytes from `start` on, or None if its checksum is wrong."""
    payload = data[start : start + length]
    stored = data[start + length : start + length + 4].tobytes()
    return payload if masked(payload) == int.from_bytes(stored, "little") else None
