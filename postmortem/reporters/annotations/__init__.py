"""Findings written back for the tools that show a run, TensorBoard and W&B. The user's files stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.annotations import FOLDER

if TYPE_CHECKING:
    from postmortem.core.report import RunReport


def folder_of(run: RunReport) -> Path:
    """The folder for what is written about a run: in its folder, or beside its file under the file's name."""
    path = Path(run.path)
    return path / FOLDER if path.is_dir() else path.parent / FOLDER / path.name
