"""Whose code runs: tells the user's frames from torch's, and names the place in the user's code."""

from __future__ import annotations

import ast
import linecache
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import CodeType, FrameType

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FUNCTORCH = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "functorch") + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
USER, LIBRARY, MODULE_CALL, CHECKPOINT, STOP = range(5)
kinds: dict[CodeType, int] = {}


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's code, and the module that runs there (None: outside any)."""

    code: CodeType | None
    line: int
    lasti: int
    module: torch.nn.Module | None

    @property
    def file(self) -> str | None:
        return None if self.code is None else self.code.co_filename

    @property
    def span(self) -> tuple[int, int, int, int] | None:
        """First and last line, first and last column (in UTF-8 bytes) of the expression that runs."""
        if self.code is None:
            return None
        found = list(self.code.co_positions())[self.lasti // 2]
        return None if None in found else (found[0], found[1], found[2], found[3])  # type: ignore[return-value]

    @property
    def called(self) -> str | None:
        """The name of the function that the expression calls; None where it is no call on one line."""
        span = self.span
        if span is None or self.file is None or span[0] != span[1]:
            return None
        text = linecache.getline(self.file, span[0]).encode()[span[2] : span[3]].decode(errors="replace")
        try:
            node = ast.parse(text, mode="eval").body
        except SyntaxError:
            return None
        function = node.func if isinstance(node, ast.Call) else None
        return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else None


NOWHERE = Where(None, 0, 0, None)


def _classify(code: CodeType) -> int:
    file, name = code.co_filename, code.co_name
    if file.startswith(_TORCH):
        tail = file[len(_TORCH) :].replace(os.sep, "/")
        if tail == "nn/modules/module.py" and name == "_call_impl":
            return MODULE_CALL
        if (tail, name) in (("autograd/graph.py", "_engine_run_backward"), ("optim/optimizer.py", "wrapper")):
            return STOP
        return CHECKPOINT if tail == "utils/checkpoint.py" else LIBRARY
    if file.startswith(_OWN):
        return STOP
    generated = file.startswith(("<frozen", "<string>", "<eval_with_key"))  # "<ipython-input…" is the user's
    standard = file.startswith(_STDLIB) and "site-packages" not in file
    return LIBRARY if generated or standard or file.startswith(_FUNCTORCH) else USER


def kind_of(code: CodeType) -> int:
    """USER, LIBRARY, MODULE_CALL (a module calls its forward), CHECKPOINT, or STOP (what is outside is not the step)."""
    kind = kinds.get(code)
    if kind is None:
        kind = kinds[code] = _classify(code)
    return kind


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code at or outside `frame`, within the step."""
    while frame is not None:
        kind = kind_of(frame.f_code)
        if kind == USER:
            return frame
        if kind == STOP and frame.f_code.co_name != "__torch_function__":
            return None
        frame = frame.f_back
    return None
