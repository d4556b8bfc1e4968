"""Files of torch.save before 1.6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postmortem.checkpoints.formats.legacy import Legacy
from tests.checkpoints.formats.cases import writes

torch = pytest.importorskip("torch")


@writes(Legacy)
def saved_by_torch_as_before(folder: Path, content: dict[str, Any]) -> Path:
    torch.save(content, folder / "step_7.pt", _use_new_zipfile_serialization=False)
    return folder / "step_7.pt"
