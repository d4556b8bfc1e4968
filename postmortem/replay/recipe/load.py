"""Loads a user's recipe, `recipe(ctx) -> TrainStep`, and calls it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import home_of, is_checkpoint
from postmortem.core.errors import ReplayError, did_you_mean
from postmortem.replay.model import Context, TrainStep
from postmortem.replay.recipe.check import check
from postmortem.replay.recipe.user_errors import call_user
from postmortem.replay.trace.user_code import installed, is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INSIDE = re.compile(r"(checkpoint|ckpt|weight)s?|version_\d+|lightning_logs")  # folders in a run that are not the run


class Recipe:
    """``FILE.py[:function]``, found but not yet loaded. Raises ReplayError if there is no such file."""

    def __init__(self, spec: str) -> None:
        path, _, function = str(spec).partition(":") if Path(spec).suffix != ".py" else (str(spec), "", "")
        self.path, self.function = Path(path).resolve(), function or "recipe"
        if not self.path.is_file() or self.path.suffix != ".py":
            function = f"a function {self.function}(ctx)"
            raise ReplayError(f"no recipe {path}: give a Python file with {function}, as FILE.py or FILE.py:FUNCTION")

    @classmethod
    def beside(cls, target: Path) -> Recipe | None:
        """The ``recipe.py`` in the run's folder or beside it; None if there is none."""
        folders = [f := target.resolve() if target.is_dir() else target.resolve().parent]
        while f != f.parent and (home_of(f) != f or _INSIDE.fullmatch(f.name) or is_checkpoint(f)):
            folders.append(f := f.parent)
        folders.append(f.parent)
        return next((cls(str(f / "recipe.py")) for f in folders if (f / "recipe.py").is_file()), None)

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Puts the recipe's folder on ``sys.path``. On exit path, modules and working directory are restored; nothing
        is written into the folder."""
        folder, before, path, silent = self.path.parent, dict(sys.modules), list(sys.path), sys.dont_write_bytecode
        here = os.getcwd()
        own = {p.stem for p in folder.iterdir() if p.suffix == ".py" or p.is_dir()}
        # other versions of the user's files may be loaded: of an earlier trial, or of another project
        shadowed = {
            n: m
            for n, m in before.items()
            if _lies_in(m, folder) or (n.partition(".")[0] in own and not installed(n, m))
        }
        for name in shadowed:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            sys.dont_write_bytecode = silent
            sys.path[:] = path
            fresh = [(n, m) for n, m in sys.modules.items() if n not in before or n in shadowed]
            for name in [n for n, m in fresh if _lies_in(m, folder)]:
                del sys.modules[name]
            sys.modules.update(shadowed)
            os.chdir(here)  # last: it may be gone

    def build(self, context: Context) -> TrainStep:
        """Loads and runs the recipe anew; call it inside `importable`. Raises ReplayError, with the user's line, if the
        recipe raises or what it returns cannot be used."""
        for name in [n for n, m in sys.modules.items() if _lies_in(m, self.path.parent)]:
            del sys.modules[name]
        function = self._load()
        made = call_user(f"the recipe {self.path.name}", function, context)
        if not isinstance(made, TrainStep):
            must = f"{self.function}(ctx) must return a postmortem.TrainStep"
            raise ReplayError(f"{self.path.name}: {must}, not {type(made).__name__}")
        check(made, f"{self.path.name}: ")
        return made

    def _load(self) -> Callable[[Context], Any]:
        name = self.path.stem
        spec = importlib.util.spec_from_file_location(name, self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        call_user(f"the recipe {self.path.name}", spec.loader.exec_module, module)
        function = getattr(module, self.function, None)
        if not callable(function):
            known = did_you_mean(self.function, vars(module))
            raise ReplayError(f"{self.path.name} has no function {self.function!r}{known}")
        return function  # type: ignore[no-any-return]


def _lies_in(module: Any, folder: Path) -> bool:
    """True if a module is one of the user's files below `folder`, not an installed package or postmortem itself."""
    origin = getattr(module, "__file__", None)
    if origin is None or getattr(module, "__name__", "").partition(".")[0] == "postmortem":
        return False
    return Path(origin).is_relative_to(folder) and is_users(origin)
