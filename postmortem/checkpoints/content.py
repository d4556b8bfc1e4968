"""Reads the content of a checkpoint, without running pickled code.

A file gives its content unchanged; a folder gives a dict by file name without suffix, with shards joined under the
name of their index and small JSON files parsed. Formats: torch zip and legacy files (``weights_only=True``),
safetensors, sharded ``*.index.json``, torch.distributed.checkpoint.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import is_weights, plain_number
from postmortem.checkpoints.formats import format_of
from postmortem.checkpoints.formats.shared.restricted_pickle import why_unreadable
from postmortem.checkpoints.steps import RANDOM_STATES, index_problem, listed, shards_named, step_in_content
from postmortem.core.errors import PostmortemError, UnreadableCheckpoint
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.checkpoints.formats import CheckpointFormat

_JSON_LIMIT = 64 * 2**20


@dataclass(slots=True)
class Saved:
    """The content of a checkpoint. `step` comes from the content, else from the name; `problems` are the parts of a
    folder that could not be read."""

    path: Path
    content: Any
    step: int | None
    problems: list[Problem] = field(default_factory=list)
    counted: bool = False
    """`step` is the number of steps that the optimizer counted, as no other step is recorded."""


def read_saved(path: Path, *, trust: bool = False) -> Saved:
    """Reads a checkpoint, file or folder. `trust` unpickles everything: only for trusted files.

    Raises UnreadableCheckpoint if a file, or everything in a folder, cannot be read.
    """
    if not path.exists():
        raise UnreadableCheckpoint(Problem(path=str(path), what="no such checkpoint"))
    problems: list[Problem] = []
    if not path.is_dir():
        content = read_file(path, trust=trust)
    elif (whole := format_of(path)) is not None:
        content = whole.read(path, trust=trust)
    else:
        content = _read_folder(path, trust, problems)
        if not content:
            raise UnreadableCheckpoint(
                problems[0] if problems else Problem(path=str(path), what="no saved weights in this folder")
            )
    step = step_in_content(content, path)
    if step is None:
        return Saved(path, content, _optimizer_count(content), problems, counted=True)
    return Saved(path, content, step, problems)


def _optimizer_count(content: Any) -> int | None:
    """The number of steps of an optimizer in `content`, by its own count (Adam keeps one per parameter)."""
    level: dict[int, Any] = {0: content}
    for _ in range(4):  # levels of nested containers; one that occurs several times counts once
        for held in level.values():
            if isinstance(held, dict) and isinstance(held.get("state"), dict) and "param_groups" in held:
                counts = [plain_number(s.get("step")) for s in held["state"].values() if isinstance(s, dict)]
                if finite := [int(n) for n in counts if isinstance(n, (int, float)) and math.isfinite(n)]:
                    return max(finite)
        containers = [h for h in level.values() if isinstance(h, (dict, list))]
        level = {id(v): v for h in containers for v in (h.values() if isinstance(h, dict) else h)}
    return None


def _read_folder(folder: Path, trust: bool, problems: list[Problem]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    shards: set[str] = set()
    for name in names:
        if name.endswith(".index.json"):
            index = _read_json(folder / name, problems)
            if index is not None and (problem := index_problem(folder / name, index)) is not None:
                problems.append(problem)
            files = shards_named(index)
            shards.update(files)
            content[name.split(".")[0]] = _read_shards(folder, files, trust, problems)
    for name in names:
        if name in shards or name.endswith(".index.json") or (name == "training_args.bin" and not trust):
            continue  # the arguments of transformers' Trainer hold no state, and a pickle that runs code
        stem = name.rpartition(".")[0]
        if (
            is_weights(name)
            or name.endswith((".pt", ".pth", ".bin"))
            or (name.startswith(RANDOM_STATES) and name.endswith(".pkl"))
        ):
            try:
                content[stem] = read_file(folder / name, trust=trust)
            except UnreadableCheckpoint as error:
                problems.append(error.problem)
        elif name.endswith(".json") and (folder / name).stat().st_size < _JSON_LIMIT:
            content.setdefault(stem, _read_json(folder / name, problems))
    for inner in sorted(p for p in folder.iterdir() if p.is_dir() and p.name.startswith("mp_rank")):
        content[inner.name] = _read_folder(inner, trust, problems)
    return content


def _read_shards(folder: Path, files: list[str], trust: bool, problems: list[Problem]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name in files:
        try:
            shard = read_file(folder / name, trust=trust)
        except UnreadableCheckpoint as error:
            problems.append(error.problem)
            continue
        if isinstance(shard, dict):
            joined.update(shard)
        else:
            what = f"not a shard: it contains a {type(shard).__name__}, not named tensors"
            problems.append(Problem(path=str(folder / name), what=what, lost="the file"))
    return joined


def _read_json(path: Path, problems: list[Problem]) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(path=str(path), what=f"not valid JSON: {error}", lost="the file"))
        return None


def read_file(path: Path, *, trust: bool = False) -> Any:
    """The content of one file, tensors on the CPU.

    Raises UnreadableCheckpoint if it is damaged, refused or of no known format.
    """
    try:
        regular, exists = path.is_file(), path.exists()
    except OSError as error:  # an index may list a name that no file can have
        what = f"cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(
            Problem(path=listed(path.parent, path.name), what=what, lost="its weights")
        ) from error
    if not regular:
        what = "not a regular file, but a device or a pipe" if exists else "missing: an index lists this file"
        raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="its weights"))
    try:
        return _format_of(path).read(path, trust=trust)
    except PostmortemError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UnreadableCheckpoint(
            Problem(path=str(path), what=why_unreadable(path, error), lost="the file")
        ) from error


def _format_of(path: Path) -> type[CheckpointFormat]:
    found = format_of(path)
    if found is None:
        raise ValueError("no known checkpoint format")
    return found
