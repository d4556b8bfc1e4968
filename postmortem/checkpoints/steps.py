"""The step that a saved state records, and the files that an index of shards lists."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import step_in, step_of
from postmortem.core.model import Problem

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


_INDEXES = (".safetensors.index.json", ".bin.index.json")
_LONGEST_NAME = 255  # bytes; what the usual file systems allow


def index_problem(path: Path, content: Any) -> Problem | None:
    """A Problem where `content`, that of the file `path`, should be an index of shards and is none."""
    if not path.name.endswith(_INDEXES) or (isinstance(content, dict) and isinstance(content.get("weight_map"), dict)):
        return None
    what = "the index of the shards cannot be read: whether a shard is missing is not known"
    return Problem(path=str(path), what=what, lost="the names of the shards")


def listed(folder: Path, name: str) -> str:
    """The path of a file that an index lists, for a Problem; a name that no file can have is shortened."""
    return str(folder / name) if len(name) <= _LONGEST_NAME else f"{folder / name[:60]}… ({len(name)} characters)"


def shards_named(index: Any) -> list[str]:
    """The files that an index of shards lists. Paths outside the folder and values that are not strings are ignored."""
    weights = index.get("weight_map") if isinstance(index, dict) else None
    names = {name for name in weights.values() if isinstance(name, str)} if isinstance(weights, dict) else set()
    return sorted(
        name for name in names if name and not PurePath(name).is_absolute() and ".." not in PurePath(name).parts
    )
