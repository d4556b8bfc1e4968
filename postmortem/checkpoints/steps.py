"""The step that a saved state records, and the files that an index of shards lists."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import step_in, step_of

if TYPE_CHECKING:
    from pathlib import Path

RANDOM_STATES = "random_states"  # accelerate's, as random_states_0.pkl


def step_in_content(content: Any, path: Path) -> int | None:
    """The step in the content, one file of a folder at a time; else the step in the name."""
    step = step_in(content)
    if step is None and path.is_dir() and isinstance(content, dict):
        parts = [v for k, v in content.items() if not k.startswith(RANDOM_STATES)]  # accelerate's count micro-batches
        step = next((s for s in map(step_in, parts) if s is not None), None)
    return step_of(path) if step is None else step


def shards_named(index: Any) -> list[str]:
    """The files that an index of shards lists. Paths outside the folder and values that are not strings are ignored."""
    weights = index.get("weight_map") if isinstance(index, dict) else None
    names = {name for name in weights.values() if isinstance(name, str)} if isinstance(weights, dict) else set()
    return sorted(
        name for name in names if name and not PurePath(name).is_absolute() and ".." not in PurePath(name).parts
    )
