"""What can be imported from a training script, read from its text without running it."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.run import Run

_DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_BUILDS = ("build", "build_model", "make_model", "get_model", "create_model", "init_model")
_SEEDS = re.compile(r"torch\.manual_seed|(?:\w+\.)*(?:seed_everything|set_seed|manual_seed_all)|manual_seed")
_MODULE = ("Module", "LightningModule", "PreTrainedModel")


class Script:
    """A training script; `path` is None if none is known."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def of_run(cls, run: Run | None, folder: Path) -> Script:
        """The script that the run's log or metadata names, else the only one with a training loop beside the run."""
        launched = run.launched if run is not None else None
        named = next((word for word in launched.words if word.endswith(".py")), None) if launched else None
        where = (folder.__class__(launched.folder) if launched and launched.folder else None, folder)
        for base in where:
            if named and base is not None and (base / named).is_file():
                return cls(base / named)
        if named and (path := folder.__class__(named)).is_file():
            return cls(path)
        own = [p for p in sorted(folder.glob("*.py")) if p.name != "recipe.py"]
        found = [p for p in own if p.stem in ("train", "main")] or own
        return cls(found[0] if len(found) == 1 else None)

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return ast.parse(self.path.read_text("utf-8", "replace") if self.path else "")
        except (OSError, SyntaxError, ValueError, RecursionError):
            return ast.Module(body=[], type_ignores=[])

    @property
    def name(self) -> str:
        """The name to import."""
        return self.path.stem if self.path else ""

    @cached_property
    def importable(self) -> bool:
        """Whether importing it only defines things: what trains stands in functions or behind a test of `__name__`."""
        body = [s for s in self._tree.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        plain = [s for s in body if not (isinstance(s, ast.If) and "__name__" in ast.dump(s.test))]
        return bool(self.path and body) and self.name.isidentifier() and all(_defines(s) for s in plain)

    def _functions(self) -> dict[str, list[str]]:
        return {
            s.name: [a.arg for a in s.args.args[: len(s.args.args) - len(s.args.defaults)]]
            for s in self._tree.body
            if isinstance(s, ast.FunctionDef) and self.importable
        }

    def builder(self) -> str | None:
        """The expression that makes the model, perhaps together with its optimizer and scheduler."""
        needs = self._functions()
        found = next((n for n in _BUILDS if needs.get(n) == []), None)
        if found is None:
            models = [name for name in self.classes(_MODULE) if not self._used_by_others(name)]
            found = models[0] if len(models) == 1 and not self.arguments(models[0]) else None
        return f"{self.name}.{found}()" if found else None

    def builds_more(self) -> bool:
        """Whether the function that makes the model returns a tuple, which may hold its optimizer and scheduler."""
        functions = [s for s in self._tree.body if isinstance(s, ast.FunctionDef) and s.name in _BUILDS]
        made = [n.value for s in functions for n in ast.walk(s) if isinstance(n, ast.Return)]
        return self.builder() is not None and any(isinstance(value, ast.Tuple) for value in made)

    def loss(self) -> str | None:
        """The function of model and batch that returns the loss."""
        found = [n for n, needs in self._functions().items() if "loss" in n and len(needs) == 2]
        return f"{self.name}.{found[0]}" if len(found) == 1 else None

    def batch(self) -> str | None:
        """The function of the step that returns its batch."""
        found = [n for n, needs in self._functions().items() if n in ("batch", "get_batch") and len(needs) == 1]
        return f"{self.name}.{found[0]}" if found else None

    def clip(self) -> float | None:
        """The one max_norm of clip_grad_norm_ in the script, if it is written as a number."""
        calls = [n for n in ast.walk(self._tree) if isinstance(n, ast.Call)]
        clips = [c for c in calls if ast.unparse(c.func).endswith("clip_grad_norm_")]
        norms = [n for c in clips for n in (*c.args[1:2], *(k.value for k in c.keywords if k.arg == "max_norm"))]
        values = [n.value for n in norms if isinstance(n, ast.Constant)]
        return float(values[0]) if len(values) == 1 and isinstance(values[0], (int, float)) else None

    def seed(self) -> int | None:
        """The one seed of torch that the script writes as a number."""
        calls = [n for n in ast.walk(self._tree) if isinstance(n, ast.Call) and len(n.args) == 1]
        seeds = [c.args[0] for c in calls if _SEEDS.fullmatch(ast.unparse(c.func))]
        values = {n.value for n in seeds if isinstance(n, ast.Constant) and isinstance(n.value, int)}
        return values.pop() if len(values) == 1 and all(isinstance(n, ast.Constant) for n in seeds) else None

    def classes(self, bases: tuple[str, ...]) -> list[str]:
        """Names of the classes with one of these base classes."""
        every = [s for s in self._tree.body if isinstance(s, ast.ClassDef) and self.importable]
        return [s.name for s in every if any(ast.unparse(b).rpartition(".")[2] in bases for b in s.bases)]

    def methods(self, name: str) -> dict[str, list[str]]:
        """The methods of a class, with the arguments that each needs."""
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                defined = [f for f in node.body if isinstance(f, ast.FunctionDef)]
                return {
                    f.name: [a.arg for a in f.args.args[1 : len(f.args.args) - len(f.args.defaults)]] for f in defined
                }
        return {}

    def arguments(self, name: str) -> list[str]:
        """What a class needs to be made."""
        return self.methods(name).get("__init__", [])

    def _used_by_others(self, name: str) -> bool:
        others = (s for s in self._tree.body if isinstance(s, ast.ClassDef) and s.name != name)
        return any(isinstance(n, ast.Name) and n.id == name for s in others for n in ast.walk(s))


def _defines(statement: ast.stmt) -> bool:
    """Whether a statement of a module defines something; reading arguments or starting to train does more."""
    if not isinstance(statement, _DEFINES):
        return False
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return True
    return not any(
        isinstance(n, ast.Attribute) and n.attr in ("parse_args", "parse_known_args", "argv")
        for n in ast.walk(statement)
    )
