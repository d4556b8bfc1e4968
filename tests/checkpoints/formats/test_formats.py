"""Checkpoint formats: one class each, found by a scan without torch, added by one file."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from postmortem.checkpoints.find import find_checkpoints, is_weights
from postmortem.checkpoints.formats import FORMATS, CheckpointFormat, checkpoint_format, format_of, weight_suffixes
from tests.cases import ROOT

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SUFFIX = ".no_format_has_this"


class ZippedArrays(CheckpointFormat):
    """A zip archive with one ``.npy`` file per array, uncompressed, as numpy's ``savez`` writes it."""

    name = "zipped-arrays-of-this-test"
    priority = 30
    suffixes = (SUFFIX,)

    @staticmethod
    def claims(path: Path) -> bool:
        return path.suffix == SUFFIX

    @staticmethod
    def pieces(path: Path, *, trust: bool) -> Any:
        from postmortem.checkpoints.formats.shared.pieces import Piece, Pieces
        from postmortem.checkpoints.formats.shared.zip_records import Part, data_offset

        held = Pieces({})
        with path.open("rb") as f, zipfile.ZipFile(f) as archive:
            part = Part(f, 0, path.stat().st_size)
            for info in archive.infolist():
                with archive.open(info) as record:
                    np.lib.format.read_magic(record)
                    shape, _, dtype = np.lib.format.read_array_header_1_0(record)
                    header = record.tell()
                offset, nbytes = data_offset(part, info) + header, info.file_size - header
                kind = getattr(torch, dtype.name)
                held.pieces.append(Piece(info.filename.removesuffix(".npy"), shape, kind, path, offset, nbytes))
        return held

    @staticmethod
    def read(path: Path, *, trust: bool) -> Any:
        with np.load(path, allow_pickle=trust) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.fixture
def zipped_arrays() -> Iterator[type[CheckpointFormat]]:
    """The format above, registered as a plugin registers it."""
    list(FORMATS)
    yield checkpoint_format(ZippedArrays)
    del FORMATS._items[FORMATS.key(ZippedArrays)]


def test_a_format_is_one_class(tmp_path: Path, zipped_arrays: type[CheckpointFormat]) -> None:
    """A registered format is found by its suffix, mapped, looked into for NaN and read, with no other change."""
    from postmortem.checkpoints.content import read_saved
    from postmortem.checkpoints.health import health

    path = tmp_path / f"ckpt_7{SUFFIX}"
    with path.open("wb") as file:
        np.savez(file, w=np.array([[1.0, 2.0], [np.nan, 4.0]]), b=np.zeros(3, np.float32))
    assert [(c.path, c.step) for c in find_checkpoints(tmp_path)] == [(str(path), 7)]
    seen = health(path)
    assert (seen.step, seen.finite, seen.problems) == (7, False, [])
    assert [(t.name, t.shape, t.nan) for t in seen.tensors] == [("w", (2, 2), 1), ("b", (3,), 0)]
    saved = read_saved(path)
    assert (saved.step, saved.content["w"].shape) == (7, (2, 2))


def test_an_unknown_suffix_is_no_checkpoint(tmp_path: Path) -> None:
    """Without the plugin nothing takes such a file for saved weights."""
    assert not is_weights(f"ckpt_7{SUFFIX}")
    assert SUFFIX not in weight_suffixes()


def test_suffixes_are_documented() -> None:
    """docs/formats.md lists each suffix that a scan takes for saved weights."""
    page = (ROOT / "docs" / "formats.md").read_text()
    listed = page[page.index("Checkpoints (") : page.index("are found by name")]
    assert [suffix for suffix in weight_suffixes() if f"`{suffix}`" not in listed] == []


def test_formats_are_asked_in_order(tmp_path: Path) -> None:
    """The first format that claims a file reads it; a folder of several files is no format's own."""
    torch.save({"w": torch.ones(2)}, tmp_path / "new.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "x.safetensors").write_bytes(b"")
    claimed = {p.name: getattr(format_of(p), "name", None) for p in sorted(tmp_path.iterdir())}
    assert claimed == {"new.pt": "zip", "old.pt": "legacy", "x.safetensors": "safetensors"}
    assert format_of(tmp_path) is None


def test_finding_checkpoints_needs_no_torch(python: Any) -> None:
    """A scan asks every format for its file names; that imports no torch."""
    code = (
        "import sys; from postmortem.checkpoints.find import is_weights; assert is_weights('a.pt'); print('torch' "
        "in sys.modules)"
    )
    assert python("-c", code).stdout.strip() == "False"
