"""Loads pickles without running their code, and describes in one clause why a file could not be loaded."""

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

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONGEST_PICKLE = 16 * 2**20  # bytes of structure: 100,000 tensors with their names take 10 MB
# a pickle written by torch nests less than 1,000 deep and holds at most the items of one tuple
_MARKS, _STACK = 10_000, 2_000_000
_READS = 8_000_000  # two to three per value
_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the first pickle of a legacy file


class _Dtype:
    """Replaces a numpy dtype in a pickle, whose state is not trustworthy: an object dtype that claims to hold no
    objects would turn the file's bytes into pointers. Only the name and the byte order are used."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(str(name))
        if self.dtype.kind not in "biufcSUO":
            arrays = f"numpy arrays of {str(name)[:40]}"
            raise ValueError(f"refused: the pickle holds {arrays}; to load it, use --trust (only for files you trust)")

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """A numpy array in a pickle: empty until its content is set, with a dtype of numpy itself."""

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


def plain_classes() -> dict[str, Any]:
    """What stands for the classes of plain data, by their names: numpy arrays and scalars, deque, Namespace, paths.

    Making and filling objects of these classes runs no code of the file.
    """
    core = ("numpy.core.multiarray", "numpy._core.multiarray")
    themselves: tuple[type, ...] = (collections.deque, collections.defaultdict, dict, list, set)
    themselves += (argparse.Namespace, types.SimpleNamespace, pathlib.PosixPath, pathlib.PurePosixPath)
    return {
        "numpy.dtype": _Dtype,
        "numpy.ndarray": _Array,
        "builtins.bytes": _no_bytes,
        **{f"{module}._reconstruct": _Array for module in core},
        **{f"{module}.scalar": _scalar for module in core},
        **{f"{each.__module__}.{each.__qualname__}": each for each in themselves},
        "pathlib._local.PosixPath": pathlib.PosixPath,
    }


def safe_globals() -> Any:
    """Allows `plain_classes` for one load by torch, which like weights_only itself runs no code of the file."""
    import torch

    make = getattr(torch.serialization, "safe_globals", None)
    if make is None:
        return nullcontext()
    return make([(each, name) for name, each in plain_classes().items()])


class _Unknown(dict[Any, Any]):
    """Replaces an object whose class cannot be imported: its pickled state, as items and as attributes."""

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
    """Unpickles everything; classes that cannot be imported (``__main__.Config``) become `_Unknown`."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Unknown,), {"__module__": module})


TRUSTING = types.SimpleNamespace(Unpickler=Trusting, load=lambda f, **how: Trusting(f, **how).load(), __name__="pickle")
"""Replaces the module pickle, for files that the user trusts."""


def load(path: Path, *, trust: bool, mmap: bool = False) -> Any:
    """``torch.load`` to the CPU with ``weights_only=True``; with `trust`, everything in the file is unpickled."""
    import torch

    how: dict[str, Any] = {"weights_only": False, "pickle_module": TRUSTING} if trust else {"weights_only": True}
    with safe_globals():
        return torch.load(path, map_location="cpu", mmap=mmap, **how)


class Pickle(io.BytesIO):
    """The bytes of pickles for a restricted unpickler, which needs a microsecond and up to 80 bytes for each.

    Raises ValueError if the unpickler reads beyond `LONGEST_PICKLE`, or holds more than a pickle of torch would.
    """

    _unpickler: Any = None
    _reads = 0

    def counted(self, unpickler: Any) -> Callable[[int], bytes]:
        """The function by which `unpickler` must read: it checks the size of `unpickler` every 1024 reads."""
        self._unpickler = unpickler
        return self._counted

    def _counted(self, n: int) -> bytes:
        self._reads += 1
        if self._reads % 1024 == 0 and (len(self._unpickler.metastack) > _MARKS or len(self._unpickler.stack) > _STACK):
            raise ValueError("the pickle is not a saved state: it opens too many containers without filling them")
        data = self.read(n)
        if self.tell() > LONGEST_PICKLE or self._reads > _READS:
            read = f"reading stopped at byte {self.tell()}"
            raise ValueError(f"the pickle holds too much data besides the tensors: {read}")
        return data


def why_unreadable(path: Path, error: BaseException) -> str:
    """Why torch could not load a file, in one clause: refused (with what it calls), truncated, or not a checkpoint."""
    try:
        size = path.stat().st_size
        head = b"" if path.is_dir() or path.suffix in (".safetensors", ".distcp") else _head(path)
    except FileNotFoundError:
        return "gone: deleted or renamed while it was read"
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
        return f"refused: the pickle calls {', '.join(wanted)}; to load it, use --trust (only for files you trust)"
    if "Unsupported operand" in text:
        other = "a pickle of another protocol than 2, which can only be loaded with --trust (only for files you trust)"
        return f"truncated, corrupt, or {other}"
    if isinstance(error, (EOFError, struct.error)) or size == 0:
        return f"truncated: the file ends after {size} bytes"
    if isinstance(error, zipfile.BadZipFile) or "central directory" in text:
        return f"truncated after {size} bytes: the directory at the end of the zip archive is missing"
    if "zip archive" in text or "PytorchStreamReader" in text:
        return f"truncated or corrupt: {short(error)}"
    if "uantized" in text and isinstance(error, NotImplementedError):
        return "it holds quantized tensors, which are not checked"
    if "TorchScript" in text or "torch.jit" in text:
        return "a TorchScript archive, not a checkpoint"
    if isinstance(error, ValueError) and type(error) is ValueError:
        return short(error)
    if isinstance(
        error,
        (
            pickle.UnpicklingError,
            struct.error,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            AssertionError,
            ArithmeticError,
        ),
    ):
        return f"truncated, corrupt or not a torch checkpoint: {type(error).__name__}: {short(error)}"
    return f"cannot be loaded: {type(error).__name__}: {short(error)}"


def _head(path: Path) -> bytes:
    with path.open("rb") as f:
        return f.read(2**20)


def _foreign(head: bytes, size: int) -> str | None:
    """What kind of file begins with `head`, if torch.save did not write it; None if it may have."""
    # a truncated file still begins like one
    if any(head.startswith(known) or known.startswith(head) for known in (b"PK\x03\x04", _MAGIC)):
        return None
    if not head.strip(b"\0"):
        return f"only zeros: the {size} bytes of the file were never written"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer: the weights were not fetched (run git lfs pull)"
    if head[0] != 0x80:
        return f"not a torch checkpoint: neither a zip archive nor a pickle; it begins with {head[:16]!r}"
    wanted = _classes(head)
    wants = f" and that requires {', '.join(wanted[:5])}" if wanted else ""
    again = "if you trust it, load it with pickle.load and save it with torch.save"
    return f"a pickle of protocol {head[1]} that torch.save did not write{wants}: {again}"


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
    """The names that a refused pickle calls; empty if the file was not refused."""
    named = re.search(
        r"(?:Unsupported (?:global|class)[^\n]*?|GLOBAL |Trying to (?:load|call|instantiate)[^\n]*? )"
        r"([A-Za-z_][\w.]*\.[\w.]+)",
        text,
    )
    if named is None:
        return []
    import torch

    every = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    try:
        with safe_globals():
            found = list(every(path)) if every else []
    except Exception:  # noqa: BLE001 - it refuses a legacy file, of which the message names one class
        found = []
    return sorted(found)[:5] or [named.group(1).rstrip(".")]


def short(error: BaseException) -> str:
    """What `error` says, in one line of at most 200 characters, without torch's advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = next(
        (x for x in lines if x.startswith("WeightsUnpickler error")), lines[0] if lines else type(error).__name__
    )
    return re.split(r"\. This (?:file can still|is an internal)", line)[0][:200]
