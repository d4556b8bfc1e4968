"""Folders of torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from postmortem.checkpoints.formats.dcp import DistributedCheckpoint
from tests.checkpoints.formats.cases import writes

pytest.importorskip("torch")


@writes(DistributedCheckpoint)
def saved_by_one_process(folder: Path, content: dict[str, Any]) -> Path:
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is one process only
        checkpoint.save(content, checkpoint_id=folder / "step_7")
    return folder / "step_7"
