"""The format of torch.save before torch 1.6: a sequence of pickles."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.formats import CheckpointFormat, checkpoint_format

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.checkpoints.formats.shared.pieces import Pieces


@checkpoint_format
class Legacy(CheckpointFormat):
    """The format of torch.save before torch 1.6 (``_use_new_zipfile_serialization=False`` writes it today).

    Four pickles (magic number, protocol version, system, structure), the list of storage keys as a fifth, then for each
    key its number of elements (int64) and its bytes. Source: torch/serialization.py, `_legacy_save`. It claims every
    file that no other format claims, and reports why such a file is not a checkpoint.
    """

    name = "legacy"
    priority = 90

    @staticmethod
    def claims(path: Path) -> bool:
        return path.is_file()

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Pieces:
        from postmortem.checkpoints.formats.shared.restricted_pickle import LONGEST_PICKLE, Pickle
        from postmortem.checkpoints.formats.shared.storages import Storages
        from postmortem.checkpoints.formats.shared.structure import pieces_of

        with path.open("rb") as f:
            # the pickles lie before the tensors, so they are in the first bytes that `Pickle` allows
            storages, start = Storages(), Pickle(f.read(LONGEST_PICKLE + 1))
            for _ in range(3):  # magic number, protocol version, system
                storages.unpickle(start)
            content = storages.unpickle(start, trust=trust)
            keys = storages.unpickle(start)
            if not isinstance(keys, list) or len(keys) > len(storages.made) + 1000:
                raise ValueError("the list of storages is missing")
            f.seek(start.tell())
            offsets = {}
            for key in map(str, keys):
                (numel,) = struct.unpack("<q", f.read(8))
                if numel < 0:
                    raise ValueError(f"invalid size of storage {key}: {numel} elements")
                offsets[key] = f.tell()
                f.seek(numel * storages.itemsize.get(key, 1), io.SEEK_CUR)
        return pieces_of(path, content, storages.places(offsets))

    @staticmethod
    def read(path: Path, *, trust: bool) -> Any:
        from postmortem.checkpoints.formats.shared.restricted_pickle import load

        return load(path, trust=trust)
