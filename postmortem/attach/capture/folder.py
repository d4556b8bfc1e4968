"""The folder of a capture: written under a temporary name, renamed when complete; then the oldest are removed.

    NAME/capture.json               what it is, where it comes from, and the sizes of the other files
    NAME/PART.json                  nested values, see `values`
    NAME/PART.safetensors           their tensors

A folder of this name is whole, or is not there: a process that is killed while it writes leaves a folder that begins
with a dot, which the next one removes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.attach.capture import tensors
from postmortem.attach.capture.values import Packer, Unpacker
from postmortem.checkpoints.captures import HEAD
from postmortem.core.errors import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

FORMAT = 1
_SPARE = 256 << 20  # bytes of the disk that a capture leaves to the program
_WRITING, _REMOVING = ".writing-", ".removing-"
_ABANDONED = 86400.0  # seconds after which what another machine was writing is not awaited


@dataclass(frozen=True, slots=True)
class Place:
    """Where captures go, and how much of them is kept: `keep` captures, `most` bytes altogether."""

    folder: Path
    keep: int = 3
    most: int = 32 << 30

    def draft(self) -> Path:
        """A new folder to write into; what killed processes left is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _sweep(self.folder)
        for n in range(1000):
            path = self.folder / f"{_WRITING}{socket.gethostname()}-{os.getpid()}-{n}"
            with suppress(FileExistsError):
                path.mkdir()
                return path
        raise OSError(f"{self.folder}: too many captures are being written")

    def whole(self) -> list[Path]:
        """The captures, the oldest first."""
        return sorted(p.parent for p in self.folder.glob(f"[!.]*/{HEAD}"))


def sizes(folder: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(p.stat().st_size for p in folder.iterdir())


@dataclass
class Draft:
    """A capture that is being written at `path`. unstored: what could not be stored, by name."""

    place: Place
    path: Path
    unstored: list[str] = field(default_factory=list)

    def add(self, part: str, value: Any) -> None:
        """Writes one part. Raises OSError where it is too large or the disk is full."""
        packer = Packer()
        told = packer.pack(value, part)
        self.unstored += packer.unstored
        self._fits(sum(t.numel() * t.element_size() for t in packer.tensors.values()))
        tensors.save(packer.tensors, self.path / f"{part}.safetensors")
        _write(self.path / f"{part}.json", json.dumps({"value": told, "unstored": packer.unstored}, allow_nan=False))

    def _fits(self, size: int) -> None:
        if size + sizes(self.path) > self.place.most:
            raise OSError(f"it has {size / 1e9:.1f} GB, and the limit is {self.place.most / 1e9:.1f} GB")
        free = shutil.disk_usage(self.path).free
        if size + _SPARE > free:
            raise OSError(f"it has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on the disk")

    def finish(self, name: str, head: dict[str, Any]) -> Path:
        """Gives it its name; after that the oldest ones are removed."""
        held = {p.name: p.stat().st_size for p in sorted(self.path.iterdir())}
        told = {"format": FORMAT, **head, "files": held}
        _write(self.path / HEAD, json.dumps(told, indent=1, allow_nan=False))
        _settle(self.path)
        path = next(p for n in range(1, 1000) if not (p := self.place.folder / _numbered(name, n)).exists())
        os.rename(self.path, path)
        _settle(self.place.folder)
        prune(self.place, path)
        return path

    def drop(self) -> None:
        """Removes it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _numbered(name: str, n: int) -> str:
    return name if n == 1 else f"{name}-{n}"


def prune(place: Place, newest: Path) -> None:
    """Removes the oldest captures until number and size are within the limits; never the newest."""
    others = [p for p in place.whole() if p != newest]
    size = {p: sizes(p) for p in [*others, newest]}
    while others and (len(others) >= place.keep or sum(size[p] for p in [*others, newest]) > place.most):
        oldest = others.pop(0)
        gone = oldest.with_name(f"{_REMOVING}{oldest.name}")
        with suppress(OSError):  # another rank has removed it
            os.rename(oldest, gone)
            shutil.rmtree(gone, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what processes that are gone were writing or removing."""
    for path in folder.glob(".*"):
        if path.name.startswith(_REMOVING) or (path.name.startswith(_WRITING) and _over(path)):
            shutil.rmtree(path, ignore_errors=True)


def _over(path: Path) -> bool:
    host, pid, _ = path.name.removeprefix(_WRITING).rsplit("-", 2)
    if host != socket.gethostname():
        return time.time() - path.stat().st_mtime > _ABANDONED
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _settle(folder: Path) -> None:
    """The names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Capture:
    """A capture that is read. head: what capture.json says. Raises ReplayError, one line, if it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = _json(path / HEAD)
        if self.head.get("format") != FORMAT:
            raise ReplayError(f"{path}: a capture of format {self.head.get('format')}, this version reads {FORMAT}")
        for name, size in self.head["files"].items():
            held = path / name
            if not held.is_file() or held.stat().st_size != size:
                raise ReplayError(f"{held}: is missing, or has another size than when it was written")

    def part(self, name: str) -> Part:
        """One part, as `Draft.add` wrote it."""
        try:
            held = tensors.load(self.path / f"{name}.safetensors")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReplayError(f"{self.path / name}.safetensors: {error}") from error
        return Part(_json(self.path / f"{name}.json")["value"], held, self.path / f"{name}.json")


@dataclass
class Part:
    """Values as they are stored, and their tensors; made into values where the program's own are at hand."""

    told: Any
    tensors: dict[str, torch.Tensor]
    path: Path

    def of(self, key: str) -> Any:
        """What is stored under a key of a part that is a dict."""
        return dict(self.told["v"])[key]

    def items(self, told: Any) -> list[dict[str, Any]]:
        """A list of dicts, their values as they are stored."""
        return [dict(one["v"]) for one in told]

    def value(self, told: Any = None, like: Any = None) -> Any:
        """The whole, or that of one `told` in it."""
        try:
            return Unpacker(self.tensors).unpack(self.told if told is None else told, like)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
            raise ReplayError(f"{self.path}: not as it was written ({error})") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReplayError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ReplayError(f"{path}: not the file of a capture")
    return found
