"""The format of torch.save since torch 1.6: a zip archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.formats import CheckpointFormat, checkpoint_format

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.checkpoints.formats.shared.pieces import Pieces

_MAPPED = 64 * 2**20  # larger files are mapped, not read


@checkpoint_format
class ZipArchive(CheckpointFormat):
    """The zip archive that torch.save writes since torch 1.6.

    ``data.pkl`` holds the structure, ``data/<key>`` the bytes of each storage, uncompressed. Source:
    torch/serialization.py and torch/csrc/jit/serialization of PyTorch.
    """

    name = "zip"
    priority = 50
    suffixes = (".pt", ".pth", ".ckpt", ".pth.tar", ".pt.tar", ".t7")

    @staticmethod
    def claims(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as f:
            return f.read(4) == b"PK\x03\x04"

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Pieces:
        from postmortem.checkpoints.formats.shared.structure import pieces_of, structure_of_zip

        with path.open("rb") as f:
            return pieces_of(path, *structure_of_zip(f, 0, path.stat().st_size, trust))

    @staticmethod
    def verify(path: Path) -> None:
        from postmortem.checkpoints.formats.shared.zip_records import check_file

        with path.open("rb") as f:
            check_file(f, path.stat().st_size)

    @staticmethod
    def read(path: Path, *, trust: bool) -> Any:
        from postmortem.checkpoints.formats.shared.restricted_pickle import load
        from postmortem.checkpoints.formats.shared.zip_records import check_file

        size = path.stat().st_size
        with path.open("rb") as f:
            check_file(f, size)
        return load(path, trust=trust, mmap=size > _MAPPED)
