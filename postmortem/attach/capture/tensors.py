"""Files of safetensors, written and read without the library: a user's environment may not have it.

The tensors go to the disk one by one, so that nothing is held in memory twice.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
STORED = frozenset(_NAMES)
"""What every version of safetensors has."""
_TYPES = {name: kind for kind, name in _NAMES.items()}
_LONGEST = 100_000_000  # of a header, as in the library


def save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes tensors whose types are all in STORED."""
    header, end = {}, 0
    for key, t in tensors.items():
        begin, end = end, end + t.numel() * t.element_size()
        header[key] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for t in tensors.values():
            file.write(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path) -> dict[str, torch.Tensor]:
    """Reads a file. Raises ValueError or KeyError for one that is damaged."""
    found = {}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LONGEST:
            raise ValueError("the header is damaged")
        header = json.loads(file.read(size))
        for key, told in header.items():
            if key == "__metadata__":
                continue
            begin, end = told["data_offsets"]
            file.seek(8 + size + begin)
            data = bytearray(end - begin)
            if file.readinto(data) != len(data):
                raise ValueError("the file is truncated")
            kind = _TYPES[told["dtype"]]
            flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
            found[key] = flat.reshape(told["shape"])
    return found
