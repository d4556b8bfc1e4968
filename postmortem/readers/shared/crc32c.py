"""The masked CRC32C of files of TensorFlow and RocksDB, as defined in tensorflow/core/lib/hash/crc32c.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MASK_DELTA = 0xA282EAD8


def masked(data: bytes | NDArray[np.uint8]) -> int:
    """The masked CRC32C of `data`, as stored in the file: rotated and offset."""
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF
