"""Loading pickles without running what is in them, and saying in one clause why a file could not be loaded."""

from __future__ import annotations

import argparse
import collections
import io
import itertools
import pathlib
import pickle
import pickletools
import re
import struct
import types
import zipfile
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.replay.step.runner import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Problem


WHOLE = (torch.nn.Module, torch.optim.Optimizer)  # some save the objects, not their state
LONGEST_PICKLE = 16 * 2**20  # bytes of structure: 100,000 tensors with their names take 10 MB
_MARKS, _STACK = 10_000, 2_000_000  # a pickle of torch's own nests less than 1,000 deep and holds the items of one tuple at most
_READS = 8_000_000  # two to three for a value
_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the first of a legacy file's pickles


class UnreadableCheckpoint(ReplayError):
    """A checkpoint file that is truncated, corrupt, refused or of no known kind; `problem` says which, and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.path}: {problem.what}")
        self.problem = problem


def is_zip(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(4) == b"PK\x03\x04"


class _Dtype:
    """Stands in for a numpy type in a pickle, which may say anything of it: an object type that claims to hold no objects would make
    pointers of the file's bytes. Only the name and the byte order are believed."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(str(name))
        if self.dtype.kind not in "biufcSUO":
            raise ValueError(f"refused: its pickle holds numpy arrays of {str(name)[:40]}; --trust loads it, if the file is your own")

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """A numpy array in a pickle: empty until it is given its content, once for all, of a type that is numpy's own."""

    def __new__(cls, *_: Any) -> _Array:
        return super().__new__(cls, (0,), np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, stated, fortran, data = state
        believed: Any = (1, shape, stated.dtype, bool(fortran), data)
        super().__setstate__(believed)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


def _scalar(stated: Any, data: Any) -> Any:
    core = getattr(np, "_core", None) or np.core  # numpy 1 called it core
    return core.multiarray.scalar(stated.dtype, data)


def _no_bytes() -> bytes:
    return b""


def safe_globals() -> Any:
    """Allows, for one load, the classes that are plain data: numpy arrays and scalars, deque, Namespace, paths.

    Like weights_only itself this runs no code of the file: these classes only hold what is put into them.
    """
    make = getattr(torch.serialization, "safe_globals", None)
    if make is None:
        return nullcontext()
    allowed: list[Any] = [_Dtype, _Array, (_Dtype, "numpy.dtype"), (_Array, "numpy.ndarray"), (_no_bytes, "builtins.bytes")]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        allowed += [(_Array, f"{module}._reconstruct"), (_scalar, f"{module}.scalar")]
    allowed += [collections.deque, collections.defaultdict, dict, list, set, argparse.Namespace, types.SimpleNamespace]
    allowed += [pathlib.PosixPath, pathlib.PurePosixPath, (pathlib.PosixPath, "pathlib._local.PosixPath")]
    return make(allowed)


class _Unknown(dict[Any, Any]):
    """Stands in for an object of a class that is not here: what the pickle says of it, as items and as attributes."""

    def __init__(self, *_: Any, **given: Any) -> None:
        super().__init__(given)

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            self.update(part if isinstance(part, dict) else {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Trusting(pickle.Unpickler):
    """Unpickles whatever can be: a script's own classes (``__main__.Config``) are not here, and no state needs them."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Unknown,), {"__module__": module})


TRUSTING = types.SimpleNamespace(Unpickler=Trusting, load=lambda f, **how: Trusting(f, **how).load(), __name__="pickle")
"""In place of the module pickle, for files that the user vouches for."""


class Pickle(io.BytesIO):
    """The bytes of pickles for torch's restricted unpickler, which takes a microsecond and up to 80 bytes for each of them.

    ValueError where the unpickler is still reading at `LONGEST_PICKLE`, or holds more than any pickle that torch writes.
    """

    _unpickler: Any = None
    _reads = 0

    def guards(self, unpickler: Any) -> None:
        """From here on looks at what `unpickler` holds, every so often; it has to read through this object's `read`."""
        self._unpickler, unpickler.read = unpickler, self._counted

    def _counted(self, n: int) -> bytes:
        self._reads += 1
        if self._reads % 1024 == 0 and (len(self._unpickler.metastack) > _MARKS or len(self._unpickler.stack) > _STACK):
            raise ValueError("its pickle is no saved state: it opens more and more containers and fills none")
        data = self.read(n)
        if self.tell() > LONGEST_PICKLE or self._reads > _READS:
            raise ValueError(f"its pickle holds too much beside the tensors: it was left at byte {self.tell()}")
        return data


def why_unreadable(path: Path, error: BaseException) -> str:
    """Why torch could not load a file, in one clause: refused (and what it wanted), truncated, or no checkpoint at all."""
    try:
        size = path.stat().st_size
        head = b"" if path.is_dir() or path.suffix in (".safetensors", ".distcp") else _head(path)
    except FileNotFoundError:
        return "gone: it was deleted or renamed while it was read"
    except OSError as denied:
        return f"cannot be read: {denied.strerror or denied}"
    if isinstance(error, PermissionError):
        return f"cannot be read: {error.strerror or error}"
    foreign = _foreign(head, size)
    if foreign:
        return foreign
    text = str(error)
    wanted = _wanted(path, text)
    if wanted:
        return f"refused: its pickle wants to call {', '.join(wanted)}; --trust loads it, if the file is your own"
    if "Unsupported operand" in text:
        return "truncated, corrupt, or a pickle of another protocol than 2, which torch.load reads only with --trust, if the file is your own"
    if isinstance(error, (EOFError, struct.error)) or size == 0:
        return f"truncated: it ends after {size} bytes"
    if isinstance(error, zipfile.BadZipFile) or "central directory" in text:
        return f"truncated: the directory at the end of the archive is missing after {size} bytes"
    if "zip archive" in text or "PytorchStreamReader" in text:
        return f"truncated or corrupt: {short(error)}"
    if "uantized" in text and isinstance(error, NotImplementedError):
        return "it holds quantized tensors, which are not looked into"
    if "TorchScript" in text or "torch.jit" in text:
        return "a TorchScript archive, not a checkpoint"
    if isinstance(error, ValueError) and type(error) is ValueError:
        return short(error)
    if isinstance(error, (pickle.UnpicklingError, struct.error, ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError)):
        return f"truncated, corrupt or no torch checkpoint: {type(error).__name__}: {short(error)}"
    return f"cannot be loaded: {type(error).__name__}: {short(error)}"


def _head(path: Path) -> bytes:
    with path.open("rb") as f:
        return f.read(2**20)


def _foreign(head: bytes, size: int) -> str | None:
    """What a file is that begins with `head` and that torch.save has not written; None where it may have."""
    if any(head.startswith(known) or known.startswith(head) for known in (b"PK\x03\x04", _MAGIC)):  # cut, it still begins like one
        return None
    if not head.strip(b"\0"):
        return f"nothing but zeros: its {size} bytes were never written"
    if head.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS: the weights themselves were not fetched (git lfs pull)"
    if head[0] != 0x80:
        return f"no torch checkpoint: neither a zip archive nor a pickle, it begins with {head[:16]!r}"
    wanted = _classes(head)
    wants = f" and wants {', '.join(wanted[:5])}" if wanted else ""
    return f"a pickle of protocol {head[1]} that torch.save has not written{wants}: if it is your own, pickle.load it and torch.save it again"


def _classes(data: bytes) -> list[str]:
    """The classes and functions that a pickle names, as far as it can be followed."""
    found: dict[str, None] = {}
    words: list[str] = []
    try:
        for op, value, _ in itertools.islice(pickletools.genops(data), 200_000):
            if isinstance(value, str) and op.name not in ("GLOBAL", "INST"):
                words = [*words[-1:], value]
            elif op.name in ("GLOBAL", "INST"):
                found[str(value).replace(" ", ".")] = None
            elif op.name == "STACK_GLOBAL":
                found[".".join(words)] = None
    except Exception:  # noqa: BLE001 - cut or damaged: what was named before is named
        return list(found)
    return list(found)


def _wanted(path: Path, text: str) -> list[str]:
    """The names that a refused pickle asked for; empty where the file was not refused."""
    named = re.search(r"(?:Unsupported (?:global|class)[^\n]*?|GLOBAL |Trying to (?:load|call|instantiate)[^\n]*? )([A-Za-z_][\w.]*\.[\w.]+)", text)
    if named is None:
        return []
    every = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    try:
        with safe_globals():
            found = list(every(path)) if every else []
    except Exception:  # noqa: BLE001 - a legacy file is refused by this function; the one name from the message is what there is
        found = []
    return sorted(found)[:5] or [named.group(1).rstrip(".")]


def short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = next((x for x in lines if x.startswith("WeightsUnpickler error")), lines[0] if lines else type(error).__name__)
    return re.split(r"\. This (?:file can still|is an internal)", line)[0][:200]
