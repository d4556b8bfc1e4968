"""torch.distributed.checkpoint folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.formats import CheckpointFormat, checkpoint_format

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from postmortem.checkpoints.formats.shared.pieces import Pieces


@checkpoint_format
class DistributedCheckpoint(CheckpointFormat):
    """A torch.distributed.checkpoint folder: ``.metadata`` beside ``*.distcp``.

    ``.metadata`` is a pickle of `torch.distributed.checkpoint.metadata.Metadata`; it has for every tensor its size, its
    chunks and the place of each chunk (file, offset, length). A chunk is a small torch file of its own. Source:
    torch/distributed/checkpoint/filesystem.py.
    """

    name = "dcp"
    priority = 20
    suffixes = (".distcp",)

    @staticmethod
    def is_folder(names: Collection[str]) -> bool:
        return ".metadata" in names and any(name.endswith(".distcp") for name in names)

    @staticmethod
    def claims(path: Path) -> bool:
        return path.is_dir() and (path / ".metadata").is_file()

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Pieces:
        from postmortem.checkpoints.formats.shared.dcp_metadata import pieces_of_folder

        return pieces_of_folder(path)

    @staticmethod
    def read(path: Path, *, trust: bool) -> dict[str, Any]:
        from postmortem.checkpoints.formats.shared.dcp_metadata import read

        return read(path)
