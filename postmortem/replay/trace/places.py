"""Places in the user's code: which frames are the user's, and what expression runs there.

Installed packages count as the user's here, except torch: a fault in a layer of a library is at a line of that library.
What drives a training (transformers' Trainer, Lightning, accelerate) has no layers and counts like torch.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.replay.trace.user_code import TORCH, owner_of, watches

if TYPE_CHECKING:
    from types import CodeType, FrameType

    import torch

USER, LIBRARY, MODULE_CALL, CHECKPOINT, STOP = range(5)
kinds: dict[CodeType, int] = {}


Span = tuple[int, int, int, int]
"""First and last line, first and last column (in UTF-8 bytes) of an expression."""


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's code, as plain data that may leave the process.

    file: None if no code of the user runs. span: of the expression that runs there. owner: id of the module that runs
    there, 0 outside of any; `module` is its name, once the tracer was told the names.
    """

    file: str | None = None
    line: int = 0
    function: str = ""
    span: Span | None = None
    owner: int = 0
    module: str = ""

    @property
    def called(self) -> str | None:
        """The name of the function that the expression calls; None if it is not a call on one line."""
        span = self.span
        if span is None or self.file is None or span[0] != span[1]:
            return None
        text = linecache.getline(self.file, span[0]).encode()[span[2] : span[3]].decode(errors="replace")
        try:
            node = ast.parse(text, mode="eval").body
        except SyntaxError:
            return None
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute):
            return function.attr
        return function.id if isinstance(function, ast.Name) else None


NOWHERE = Where()


def where(code: CodeType | None, line: int, lasti: int, module: torch.nn.Module | None) -> Where:
    """The place of the instruction `lasti` of `code`, on whose behalf `module` runs."""
    owner = 0 if module is None else id(module)
    if code is None:
        return Where(owner=owner)
    return Where(code.co_filename, line, code.co_qualname, span_of(code, lasti), owner)


def span_of(code: CodeType, lasti: int) -> Span | None:
    """The expression that the instruction `lasti` belongs to."""
    found = _positions(code)[lasti // 2]
    return None if None in found else (found[0], found[1], found[2], found[3])  # type: ignore[return-value]


@functools.lru_cache(maxsize=256)
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    return list(code.co_positions())


def _classify(code: CodeType) -> int:
    owner = owner_of(code.co_filename)
    if owner == "torch":
        file, name = code.co_filename.removeprefix(TORCH).replace(os.sep, "/"), code.co_name
        if (file, name) == ("nn/modules/module.py", "_call_impl"):
            return MODULE_CALL
        if (file, name) in (("autograd/graph.py", "_engine_run_backward"), ("optim/optimizer.py", "wrapper")):
            return STOP
        return CHECKPOINT if file == "utils/checkpoint.py" else LIBRARY
    if owner == "postmortem":
        return LIBRARY if watches(code.co_filename) else STOP
    return USER if owner in ("user", "package") else LIBRARY


def kind_of(code: CodeType) -> int:
    """USER, LIBRARY, MODULE_CALL (a module calls its forward), CHECKPOINT, or STOP (outer frames are not the
    step's)."""
    kind = kinds.get(code)
    if kind is None:
        kind = kinds[code] = _classify(code)
    return kind


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code at or outside `frame` that belongs to the step; None if there is none."""
    while frame is not None:
        kind = kind_of(frame.f_code)
        if kind == USER:
            return frame
        if kind == STOP and frame.f_code.co_name != "__torch_function__":
            return None
        frame = frame.f_back
    return None


def caller(frame: FrameType | None) -> Where:
    """The innermost place of the user's code at or outside `frame`, also where the step is only begun there, as by
    `optimizer.step()`."""
    while frame is not None and kind_of(frame.f_code) != USER:
        frame = frame.f_back
    return NOWHERE if frame is None else where(frame.f_code, frame.f_lineno, frame.f_lasti, None)
