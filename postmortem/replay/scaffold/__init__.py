"""The draft of a recipe for a run: what its files say is written out, what they do not say is left to fill in."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.content import read_saved
from postmortem.core.errors import ReplayError, UnreadableCheckpoint
from postmortem.replay.scaffold import lightning, plain, trainer
from postmortem.replay.scaffold.layout import Layout
from postmortem.replay.scaffold.script import Script

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.run import Run


def draft(run: Run | None, folder: Path, checkpoint: Path | None) -> str:
    """The text of a recipe for the run in `folder`, by the content of `checkpoint` and the training script.

    Without a checkpoint the recipe makes the initial state of the training.

    What is not known stands in functions that raise NotImplementedError with what is to be filled in. Raises
    ReplayError if the checkpoint cannot be read.
    """
    try:
        layout = Layout(checkpoint, read_saved(checkpoint).content if checkpoint is not None else {})
    except UnreadableCheckpoint as error:
        raise ReplayError(f"{checkpoint}: {error}") from error
    script = Script.of_run(run, folder)
    config: dict[str, Any] = run.config if run is not None else {}
    if layout.is_trainer:
        roles = run.roles if run is not None else {}
        tags = [tag for tag, role in roles.items() if role == "loss" and tag in ("loss", "train/loss")]
        return trainer.draft(layout, config, tags[0] if tags else None)
    if layout.is_lightning or (checkpoint is None and script.classes(("LightningModule",))):
        return lightning.draft(layout, script)
    return plain.draft(layout, script)


def write(text: str, path: Path) -> str:
    """Writes a new file -> what is left to fill in, in words; ReplayError if there is one already."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ReplayError(f"{path} is there already: it is not overwritten; -o FILE writes to another file") from None
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror or error}") from error
    names = re.findall(r'NotImplementedError\("fill in (\w+\(\))', text)
    return f"fill in {', '.join(names)}" if names else "nothing is left to fill in"
