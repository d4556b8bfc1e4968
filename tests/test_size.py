"""Functions and modules stay short enough to be read at once; ruff holds complexity and the length of lines."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in sorted((ROOT / "postmortem").rglob("*.py"))}
LINES_OF_A_MODULE = 400
LINES_OF_A_FUNCTION = 60


def test_modules_are_short() -> None:
    """At most 400 lines; what is longer has two subjects."""
    lines = {path: len(text.splitlines()) for path, text in MODULES.items()}
    assert {path: n for path, n in lines.items() if n > LINES_OF_A_MODULE} == {}


def test_functions_are_short() -> None:
    """At most 60 lines from `def` to the last one, docstring included."""
    lengths = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, text in MODULES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: n for name, n in lengths.items() if n > LINES_OF_A_FUNCTION} == {}
