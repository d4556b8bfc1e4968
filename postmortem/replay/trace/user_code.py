"""Whose code a file is: the user's, an installed package's, the standard library's, torch's or our own."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path, PurePath
from typing import Any, Literal

import torch

Owner = Literal["user", "generated", "package", "driver", "standard", "torch", "postmortem"]

TORCH = os.path.dirname(torch.__file__) + os.sep
_FUNCTORCH = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "functorch") + os.sep
_OWN = str(Path(__file__).parents[2]) + os.sep
_STANDARD = (os.path.dirname(os.path.abspath(os.__file__)) + os.sep, sysconfig.get_path("stdlib") + os.sep)
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_PACKAGES = {"site-packages", "dist-packages"}
"""Packages may lie in several places: the user's site, an environment below another, PYTHONPATH."""
_WATCHING = str(Path(__file__).parents[2] / "attach") + os.sep
_DRIVERS = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}
"""Packages that only drive a training: the layers are the user's."""
_TRAINERS = ("trainer", "training_args", "optimization")
"""What the names of such files begin with in transformers, whose other files hold layers."""


def owner_of(file: str) -> Owner:
    """Who wrote the code of `file`, a file name as code objects have it.

    "generated" is code without a file, compiled from a string (by a dataclass or the user); "<ipython-input…" is
    "user". "driver" is a package's code that runs the user's training, without layers of its own.
    """
    if file.startswith((TORCH, _FUNCTORCH)):
        return "torch"
    if file.startswith(_OWN):
        return "postmortem"
    if file.startswith(("<string>", "<eval_with_key")):
        return "generated"
    if file.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(PurePath(file).parts):
        return "driver" if _drives(PurePath(file).parts) else "package"
    return "standard" if file.startswith(("<frozen", *_STANDARD)) else "user"


def _drives(parts: tuple[str, ...]) -> bool:
    """True for a file of a trainer; `parts` of its path, which has a folder of installed packages."""
    last = max((i for i, part in enumerate(parts) if part in _PACKAGES), default=-1)
    package = parts[last + 1] if last + 1 < len(parts) else ""
    return package in _DRIVERS or (package == "transformers" and parts[-1].startswith(_TRAINERS))


def watches(file: str) -> bool:
    """True for our code that stands between frames of the user's program, which goes on outside of it."""
    return file.startswith(_WATCHING)


def is_users(file: str) -> bool:
    """True if the user may have written this code: generated code counts, installed packages do not."""
    return owner_of(file) in ("user", "generated")


def installed(name: str, module: Any) -> bool:
    """True for a module of the interpreter, of a package or of ours, which a file of the user cannot replace."""
    origin = getattr(module, "__file__", None)
    top = name.partition(".")[0]
    if top in ("__main__", "postmortem") or top in sys.stdlib_module_names:
        return True
    return origin is not None and not is_users(origin)
