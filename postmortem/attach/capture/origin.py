"""Where a capture comes from: the command, the versions, the settings of torch, and the user's own source files."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from typing import Any

import torch

from postmortem._version import __version__
from postmortem.replay.trace.user_code import owner_of

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES")


def origin() -> dict[str, Any]:
    """The present process, as plain JSON types."""
    return {
        "postmortem": __version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": list(sys.orig_argv),
        "argv": [str(a) for a in sys.argv],
        "cwd": os.getcwd(),
        "versions": versions(),
        "flags": flags(),
        "code": code(),
    }


def versions() -> dict[str, str]:
    """Of what computes."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    for name in ("numpy", "transformers", "accelerate", "lightning"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"], found["device"] = str(torch.version.cuda), torch.cuda.get_device_name()
    return found


def flags() -> dict[str, Any]:
    """What decides how torch rounds and draws."""
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def code() -> dict[str, str]:
    """File -> SHA-256 of its text, of all modules that are the user's own."""
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and owner_of(file) == "user":
            try:
                with open(file, "rb") as source:
                    found[os.path.abspath(file)] = hashlib.sha256(source.read()).hexdigest()
            except OSError:  # it was removed since
                continue
    return found


def changes(head: dict[str, Any]) -> list[str]:
    """What is different in the present process, one line each. Files are compared by their name and hash: the training
    may lie in another folder now."""
    lines = []
    now = {os.path.basename(file): digest for file, digest in code().items()}
    for file, digest in head["code"].items():
        name = os.path.basename(file)
        if name in now and now[name] != digest:
            lines.append(f"{name} is not the file that it was when the capture was written")
    here = versions()
    for name, version in head["versions"].items():
        if here.get(name, version) != version:
            lines.append(f"{name} {here[name]}, when the capture was written {version}")
    set_ = flags()
    for name, value in head["flags"].items():
        if name != "environment" and set_.get(name) != value:
            lines.append(f"{name} is {set_.get(name)}, when the capture was written {value}")
    return lines
