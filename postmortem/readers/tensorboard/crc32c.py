"""CRC32C (Castagnoli), one message at a time and for many messages of one length at once.

The checksum is affine over GF(2): for messages of equal length crc(a) ^ crc(b) depends on a ^ b alone, and is the
exclusive or of one table entry per byte that differs. `position_tables` are those entries.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.readers.shared.crc32c import MASK_DELTA

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # reflected


def unmask(stored: Any) -> Any:
    """The CRC32C of masked stored values, uint32[n] -> uint32[n]."""
    rotated = stored - np.uint32(MASK_DELTA)
    return (rotated >> np.uint32(17)) | (rotated << np.uint32(15))


def _byte_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_BYTE = _byte_table()


@lru_cache(maxsize=512)
def position_tables(length: int) -> NDArray[np.uint32]:
    """uint32[length, 256]: what a byte that differs by d at position p of `length` bytes changes in the checksum."""
    tables = np.empty((length, 256), np.uint32)
    row = _BYTE
    for position in range(length - 1, -1, -1):
        tables[position] = row
        row = (row >> np.uint32(8)) ^ _BYTE[row & np.uint32(0xFF)]
    return tables
