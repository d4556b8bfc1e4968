"""Zip archives, as torch.save writes them since 1.6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postmortem.checkpoints.formats.zip_archive import ZipArchive
from tests.checkpoints.formats.cases import writes

torch = pytest.importorskip("torch")


@writes(ZipArchive)
def saved_by_torch(folder: Path, content: dict[str, Any]) -> Path:
    torch.save(content, folder / "step_7.pt")
    return folder / "step_7.pt"
