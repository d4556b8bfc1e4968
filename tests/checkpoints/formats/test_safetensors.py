"""safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postmortem.checkpoints.formats.safetensors import Safetensors
from tests.checkpoints.formats.cases import writes

save_file = pytest.importorskip("safetensors.torch").save_file


@writes(Safetensors)
def saved_by_the_library(folder: Path, content: dict[str, Any]) -> Path:
    save_file(content, folder / "step_7.safetensors")
    return folder / "step_7.safetensors"
