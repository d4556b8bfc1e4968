"""Reads what a checkpoint holds, without running anything that is pickled in it.

A file gives its content as it is; a folder a dict by file name without ending, with shards joined under the name of
their index and small JSON parsed. Formats: torch zip and legacy files (``weights_only=True``), safetensors, sharded
``*.index.json``, torch.distributed.checkpoint.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

from postmortem.checkpoints.find import is_weights, plain_number, step_in, step_of
from postmortem.checkpoints.formats import dcp
from postmortem.checkpoints.formats.restricted_pickle import TRUSTING, UnreadableCheckpoint, is_zip, safe_globals, short, why_unreadable
from postmortem.checkpoints.formats.zip_archive import check_file
from postmortem.core.errors import MissingExtra
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from pathlib import Path


_MAPPED = 64 * 2**20  # larger files are mapped, not read
_JSON_LIMIT = 64 * 2**20
_RANDOM = "random_states"  # accelerate's, as random_states_0.pkl


@dataclass(slots=True)
class Saved:
    """What a checkpoint holds. `step` is what it says of itself (content, else name); `problems` are the parts of a
    folder that could not be read."""

    path: Path
    content: Any
    step: int | None
    problems: list[Problem] = field(default_factory=list)
    counted: bool = False
    """`step` is the number of steps that the optimizer counted, as nothing else says it."""


def read_saved(path: Path, *, trust: bool = False) -> Saved:
    """Reads a checkpoint, file or folder. `trust` unpickles whatever is in it: only for files of one's own.

    UnreadableCheckpoint where a file, or everything in a folder, cannot be read.
    """
    if not path.exists():
        raise UnreadableCheckpoint(Problem(path=str(path), what="no such checkpoint"))
    problems: list[Problem] = []
    if not path.is_dir():
        content = read_file(path, trust=trust)
    elif dcp.is_dcp(path):
        content = dcp.read(path)
    else:
        content = _read_folder(path, trust, problems)
        if not content:
            raise UnreadableCheckpoint(problems[0] if problems else Problem(path=str(path), what="no saved weights in this folder"))
    step = step_in_content(content, path)
    if step is None:
        return Saved(path, content, _optimizer_count(content), problems, counted=True)
    return Saved(path, content, step, problems)


def _optimizer_count(content: Any) -> int | None:
    """How many steps an optimizer in `content` has done, by its own count (Adam and its kin keep one per parameter)."""
    level: dict[int, Any] = {0: content}
    for _ in range(4):  # of containers in containers, where one that stands in several places counts once
        for held in level.values():
            if isinstance(held, dict) and isinstance(held.get("state"), dict) and "param_groups" in held:
                counts = [plain_number(s.get("step")) for s in held["state"].values() if isinstance(s, dict)]
                if finite := [int(n) for n in counts if isinstance(n, (int, float)) and math.isfinite(n)]:
                    return max(finite)
        containers = [h for h in level.values() if isinstance(h, (dict, list))]
        level = {id(v): v for h in containers for v in (h.values() if isinstance(h, dict) else h)}
    return None


def step_in_content(content: Any, path: Path) -> int | None:
    """The step that the content says, one file of a folder at a time; else the one of the name; else the optimizer's own count."""
    step = step_in(content)
    if step is None and path.is_dir() and isinstance(content, dict):
        parts = [v for k, v in content.items() if not k.startswith(_RANDOM)]  # accelerate's count micro-batches
        step = next((s for s in map(step_in, parts) if s is not None), None)
    return step_of(path) if step is None else step


def _read_folder(folder: Path, trust: bool, problems: list[Problem]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    shards: set[str] = set()
    for name in names:
        if name.endswith(".index.json"):
            index = _read_json(folder / name, problems)
            files = shards_named(index)
            shards.update(files)
            content[name.split(".")[0]] = _read_shards(folder, files, trust, problems)
    for name in names:
        if name in shards or name.endswith(".index.json") or (name == "training_args.bin" and not trust):
            continue  # the arguments of transformers' Trainer hold no state, and a pickle that runs code
        stem = name.rpartition(".")[0]
        if is_weights(name) or name.endswith((".pt", ".pth", ".bin")) or (name.startswith(_RANDOM) and name.endswith(".pkl")):
            try:
                content[stem] = read_file(folder / name, trust=trust)
            except UnreadableCheckpoint as error:
                problems.append(error.problem)
        elif name.endswith(".json") and (folder / name).stat().st_size < _JSON_LIMIT:
            content.setdefault(stem, _read_json(folder / name, problems))
    for inner in sorted(p for p in folder.iterdir() if p.is_dir() and p.name.startswith("mp_rank")):
        content[inner.name] = _read_folder(inner, trust, problems)
    return content


def shards_named(index: Any) -> list[str]:
    """The files that an index of shards names. Names that lead out of the folder are none, nor is what is no name."""
    weights = index.get("weight_map") if isinstance(index, dict) else None
    names = {name for name in weights.values() if isinstance(name, str)} if isinstance(weights, dict) else set()
    return sorted(name for name in names if name and not PurePath(name).is_absolute() and ".." not in PurePath(name).parts)


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
            problems.append(Problem(path=str(folder / name), what=f"no shard: it holds a {type(shard).__name__}, not named tensors", lost="the file"))
    return joined


def _read_json(path: Path, problems: list[Problem]) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(path=str(path), what=f"not valid JSON: {error}", lost="the file"))
        return None


def read_file(path: Path, *, trust: bool = False) -> Any:
    """The content of one file, tensors on the CPU. UnreadableCheckpoint says whether it is damaged, refused or foreign."""
    if not path.is_file():
        what = "no file, but a device or a pipe" if path.exists() else "missing: an index names this file"
        raise UnreadableCheckpoint(Problem(path=str(path), what=what, lost="its weights"))
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        size, zipped = path.stat().st_size, is_zip(path)
        if zipped:
            with path.open("rb") as f:
                check_file(f, size)
        with safe_globals():
            how: dict[str, Any] = {"weights_only": False, "pickle_module": TRUSTING} if trust else {"weights_only": True}
            return torch.load(path, map_location="cpu", mmap=zipped and size > _MAPPED, **how)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UnreadableCheckpoint(Problem(path=str(path), what=why_unreadable(path, error), lost="the file")) from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise MissingExtra("reading safetensors", "replay") from None
    try:
        path.open("rb").close()  # the package says of one that may not be read that it is not there
        return dict(load_file(str(path)))
    except OSError as error:
        raise UnreadableCheckpoint(Problem(path=str(path), what=why_unreadable(path, error), lost="the file")) from error
    except Exception as error:  # SafetensorError is no subclass of anything that could be named without the package
        raise UnreadableCheckpoint(Problem(path=str(path), what=f"truncated or corrupt safetensors: {short(error)}", lost="the file")) from error
