"""Loading pickles without running what is in them, and saying in one clause why a file could not be loaded."""

from __future__ import annotations

import argparse
import collections
import pathlib
import pickle
import re
import struct
import types
import zipfile
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.replay.runner import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Problem


class UnreadableCheckpoint(ReplayError):
    """A checkpoint file that is truncated, corrupt, refused or of no known kind; `problem` says which, and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.path}: {problem.what}")
        self.problem = problem


def is_zip(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(4) == b"PK\x03\x04"


def safe_globals() -> Any:
    """Allows, for one load, the classes that are plain data: numpy arrays and scalars, deque, Namespace, paths.

    Like weights_only itself this runs no code of the file: these classes only hold what is put into them.
    """
    make = getattr(torch.serialization, "safe_globals", None)
    if make is None:
        return nullcontext()
    core = getattr(np, "_core", None) or np.core  # numpy 1 called it core
    allowed: list[Any] = [np.ndarray, np.dtype, *{type(np.dtype(c)) for c in "?bBhHiIlLqQefdFDSUO"}]
    allowed += [core.multiarray._reconstruct, core.multiarray.scalar]
    allowed += [(getattr(core.multiarray, n), f"numpy.{m}.multiarray.{n}") for n in ("_reconstruct", "scalar") for m in ("core", "_core")]
    allowed += [collections.deque, collections.defaultdict, dict, list, set, argparse.Namespace, types.SimpleNamespace]
    allowed += [pathlib.PosixPath, pathlib.PurePosixPath, (pathlib.PosixPath, "pathlib._local.PosixPath")]
    return make(allowed)


def why_unreadable(path: Path, error: BaseException) -> str:
    """Why torch could not load a file, in one clause: refused (and what it wanted), truncated, or no checkpoint at all."""
    text = str(error)
    wanted = _wanted(path, text)
    if wanted:
        return f"refused: its pickle wants to call {', '.join(wanted)}; --trust loads it, if the file is your own"
    if isinstance(error, EOFError) or path.stat().st_size == 0:
        return f"truncated: it ends after {path.stat().st_size} bytes"
    if isinstance(error, zipfile.BadZipFile) or "central directory" in text:
        return f"truncated: the directory at the end of the archive is missing after {path.stat().st_size} bytes"
    if "zip archive" in text or "PytorchStreamReader" in text:
        return f"truncated or corrupt: {short(error)}"
    if "TorchScript" in text or "torch.jit" in text:
        return "a TorchScript archive, not a checkpoint"
    if isinstance(error, (pickle.UnpicklingError, struct.error, UnicodeDecodeError, ValueError, IndexError, KeyError)):
        return f"truncated, corrupt or no torch checkpoint: {short(error)}"
    return f"cannot be loaded: {type(error).__name__}: {short(error)}"


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
