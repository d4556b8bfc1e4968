"""Where every tensor of a checkpoint lies in its files, found without reading the weights."""

from __future__ import annotations

import functools
import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.checkpoints.chunks import widened
from postmortem.checkpoints.find import is_weights, step_of
from postmortem.checkpoints.formats import format_of
from postmortem.checkpoints.formats.shared.pieces import Piece, Stamp, stamp_of
from postmortem.checkpoints.formats.shared.restricted_pickle import why_unreadable
from postmortem.checkpoints.steps import index_problem, listed, shards_named, step_in_content
from postmortem.core.errors import UnreadableCheckpoint
from postmortem.core.model import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.checkpoints.chunks import Bytes
    from postmortem.checkpoints.formats import CheckpointFormat
    from postmortem.checkpoints.formats.shared.dtypes import Dtype

_JSON_LIMIT = 25 * 2**20  # JSON takes up to thirty times its size in memory
_SHOWN = 20  # missing files that are listed one by one


@dataclass(slots=True)
class FileMap:
    """The pieces of a checkpoint, its step, and the parts of it that cannot be read."""

    pieces: list[Piece] = field(default_factory=list)
    step: int | None = None
    problems: list[Problem] = field(default_factory=list)
    stamps: dict[Path, Stamp] = field(default_factory=dict)
    unverified: dict[Path, tuple[type[CheckpointFormat], int]] = field(default_factory=dict)
    """The format and size in bytes of what has checksums that were not compared."""

    def changed(self) -> set[Path]:
        """The files that were written after they were opened: the places of their tensors are no longer known."""
        return {path for path, stamp in self.stamps.items() if stamp_of(path) != stamp}

    def add(self, path: Path, found: type[CheckpointFormat], *, prefix: str = "", trust: bool = False) -> Any:
        """Adds what a format finds in a file or folder, names with `prefix`; returns its content.

        Damage becomes a Problem; the content is then None.
        """
        held = self.guarded(path, lambda: found.pieces(path, trust=trust))
        if held is None:
            return None
        self.pieces += [replace(p, name=prefix + p.name) for p in held.pieces] if prefix else held.pieces
        self.problems += held.problems
        self.stamps |= held.stamps
        self.step = held.step
        if held.unverified:
            self.unverified[path] = found, held.unverified
        return held.content

    def verify(self) -> None:
        """Compares the checksums that were not compared yet; a wrong one becomes a Problem."""
        for path, (kind, _) in self.unverified.items():
            self.guarded(path, functools.partial(kind.verify, path))
        self.unverified = {}

    def guarded(self, path: Path, read: Callable[[], Any]) -> Any:
        """The result of `read`; None if it raises, which becomes a Problem of `path`."""
        try:
            return read()
        except UnreadableCheckpoint as error:
            self.problems.append(error.problem)
        except Exception as error:  # noqa: BLE001 - a damaged file can make the unpickler raise anything
            self.problems.append(Problem(path=str(path), what=why_unreadable(path, error), lost="the file"))
        return None


def map_files(path: Path, *, trust: bool = False) -> FileMap:
    """The map of a checkpoint, file or folder. Damage is in `problems`; nothing is raised for content.

    `trust` unpickles everything: only for trusted files.
    """
    found = FileMap()
    folder = path.is_dir()
    if folder and (whole := format_of(path)) is not None:
        found.add(path, whole, trust=trust)
        found.step = step_of(path) if found.step is None else found.step
        return found
    contents: dict[str, Any] = {}
    files = _weights_below(path) if folder else [path]
    if folder:
        found.problems += _missing_shards(path, {f.name for f in files})
    for file in files:
        prefix = "" if len(files) == 1 or file.suffix == ".safetensors" else file.name.partition(".")[0] + "."
        contents[file.stem] = _add_file(found, file, prefix, trust)
    if not found.pieces and not found.problems:
        what = "no saved weights in this folder" if folder else "no tensors in this file"
        found.problems.append(Problem(path=str(path), what=what))
    for extra in _json_files(path, ".json"):
        contents.setdefault(extra.stem, _json(extra))
    content = contents if folder else next(iter(contents.values()), None)
    found.step = found.guarded(path, lambda: step_in_content(content, path))
    return found


def _add_file(found: FileMap, path: Path, prefix: str, trust: bool) -> Any:
    found.stamps[path] = stamp_of(path)

    def known_format() -> type[CheckpointFormat] | None:
        if path.stat().st_size == 0:
            raise EOFError
        return format_of(path)

    kind = found.guarded(path, known_format)
    return None if kind is None else found.add(path, kind, prefix=prefix, trust=trust)


def _weights_below(folder: Path) -> list[Path]:
    """The files with weights in a folder and those below; a folder that is deleted meanwhile holds none."""
    return sorted(Path(where, name) for where, _, names in os.walk(folder) for name in names if is_weights(name))


def _json(path: Path) -> Any:
    try:
        small = path.stat().st_size < _JSON_LIMIT
        return json.loads(path.read_text(encoding="utf-8", errors="replace")) if small else None
    except (OSError, ValueError, RecursionError):
        return None  # no step then; `read_saved` reports it if it matters


def _json_files(folder: Path, ending: str) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(ending))
    except OSError:  # a file, or a folder that was deleted meanwhile: its weights are a problem already
        return []


def _missing_shards(folder: Path, there: set[str]) -> Iterator[Problem]:
    for index in _json_files(folder, ".index.json"):
        content = _json(index)
        if (problem := index_problem(index, content)) is not None:
            yield problem
        missing = sorted(set(shards_named(content)) - there)
        for name in missing[:_SHOWN]:
            yield Problem(path=listed(folder, name), what=f"missing: {index.name} lists this file", lost="its weights")
        if len(missing) > _SHOWN:
            what = f"{len(missing) - _SHOWN} more files that it lists are missing"
            yield Problem(path=str(index), what=what, lost="their weights")


def optimizer_count(found: FileMap) -> int | None:
    """The steps that the optimizer counted, read without loading weights; None if it counts none."""
    counts = [
        p for p in found.pieces if p.name.endswith(".step") and ".state." in f".{p.name}" and math.prod(p.shape) == 1
    ]
    seen = []
    for piece in counts[:64]:
        try:
            with piece.path.open("rb") as f:
                f.seek(piece.offset)
                data = f.read(piece.nbytes)
        except OSError:  # deleted after it was listed
            continue
        if len(data) == piece.nbytes == piece.dtype.itemsize:
            seen.append(_number(np.frombuffer(data, np.uint8), piece.dtype))
    return max((int(n) for n in seen if math.isfinite(n)), default=None)


def _number(data: Bytes, dtype: Dtype) -> float:
    if dtype.kind == "whole":
        return float(data.view(dtype.name)[0])
    return float(widened(data, dtype, np.empty(1, np.float32))[0])
