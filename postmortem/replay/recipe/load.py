"""Loads a user's recipe, `recipe(ctx) -> TrainStep`, and calls it; its folder is importable while it is used."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from postmortem.checkpoints.find import home_of, is_checkpoint
from postmortem.core.errors import ReplayError, did_you_mean
from postmortem.replay.model import Context, TrainStep
from postmortem.replay.recipe.check import check, installed, not_the_users
from postmortem.replay.step.runner import BatchError, Exited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INSIDE = re.compile(r"(checkpoint|ckpt|weight)s?|version_\d+|lightning_logs")  # folders in a run that are not the run


class Recipe:
    """``FILE.py[:function]``, found but not yet loaded. ReplayError where there is no such file."""

    def __init__(self, spec: str) -> None:
        path, _, function = str(spec).partition(":") if Path(spec).suffix != ".py" else (str(spec), "", "")
        self.path, self.function = Path(path).resolve(), function or "recipe"
        if not self.path.is_file() or self.path.suffix != ".py":
            raise ReplayError(f"no recipe {path}: give a Python file with a function {self.function}(ctx), as FILE.py or FILE.py:FUNCTION")

    @classmethod
    def beside(cls, target: Path) -> Recipe | None:
        """The ``recipe.py`` in the run's folder or beside it, or None."""
        folders = [f := target.resolve() if target.is_dir() else target.resolve().parent]
        while f != f.parent and (home_of(f) != f or _INSIDE.fullmatch(f.name) or is_checkpoint(f)):
            folders.append(f := f.parent)
        folders.append(f.parent)
        return next((cls(str(f / "recipe.py")) for f in folders if (f / "recipe.py").is_file()), None)

    @contextmanager
    def importable(self) -> Iterator[None]:
        """The recipe's folder on ``sys.path``; afterwards path, modules and working directory are as before, and nothing was written
        into the folder."""
        folder, before, path, silent = self.path.parent, dict(sys.modules), list(sys.path), sys.dont_write_bytecode
        here = os.getcwd()
        own = {p.stem for p in folder.iterdir() if p.suffix == ".py" or p.is_dir()}
        # another version of the user's files may be loaded already: of an earlier trial, or of another project
        shadowed = {n: m for n, m in before.items() if _lies_in(m, folder) or (n.partition(".")[0] in own and not installed(n, m))}
        for name in shadowed:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            sys.dont_write_bytecode = silent
            sys.path[:] = path
            for name in [n for n, m in sys.modules.items() if (n not in before or n in shadowed) and _lies_in(m, folder)]:
                del sys.modules[name]
            sys.modules.update(shadowed)
            os.chdir(here)  # last: it may be gone

    def build(self, context: Context) -> TrainStep:
        """Runs the recipe afresh; call it inside `importable`. ReplayError, with the user's own line, where it raises."""
        for name in [n for n, m in sys.modules.items() if _lies_in(m, self.path.parent)]:
            del sys.modules[name]
        function = self._load()
        made = call_user(f"the recipe {self.path.name}", function, context)
        if not isinstance(made, TrainStep):
            raise ReplayError(f"{self.path.name}: {self.function}(ctx) must return a postmortem.TrainStep, not {type(made).__name__}")
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
            raise ReplayError(f"{self.path.name} has no function {self.function!r}{did_you_mean(self.function, vars(module))}")
        return function  # type: ignore[no-any-return]


def _lies_in(module: Any, folder: Path) -> bool:
    """Whether a module is one of the user's own files below `folder`; installed packages and postmortem itself are not."""
    origin = getattr(module, "__file__", None)
    if origin is None or getattr(module, "__name__", "").partition(".")[0] == "postmortem":
        return False
    return Path(origin).is_relative_to(folder) and not not_the_users(origin)


def call_user(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Calls the user's code; what it raises becomes a ReplayError of one line that names their file and line."""
    try:
        return function(*args)
    except (ReplayError, KeyboardInterrupt):
        raise
    except BatchError as error:
        raise as_replay_error(what, error.__cause__ or error) from error.__cause__
    except BaseException as error:
        raise as_replay_error(what, error) from error


def as_replay_error(what: str, error: BaseException) -> ReplayError:
    """The ReplayError for what `error`, raised by the user's code in `what`, is."""
    return out_of_memory(what, error) or ReplayError(describe(what, error))


def out_of_memory(what: str, error: BaseException) -> ReplayError | None:
    """The ReplayError for memory that ran out; None where `error` is another."""
    text = _text(error)
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "can't allocate memory" in text or "not enough memory" in text:
        cpu = ", or --device cpu" if "CUDA" in text else ""
        return ReplayError(f"{what} ran out of memory{_where(error)}: build a smaller model or batch in the recipe{cpu}")
    return None


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of `error` that run files of the user: neither ours, nor installed packages, nor the standard library."""
    return [f for f in traceback.extract_tb(error.__traceback__) if not not_the_users(f.filename)]


def describe(what: str, error: BaseException) -> str:
    """One line: what failed, the exception, and the deepest line of the user's own files."""
    where, said = _where(error), _text(error)
    if "Original Traceback" in said:
        return f"{what} raised {_of_a_worker(said)}"
    text = " ".join(said.split())
    if isinstance(error, Exited):
        return f"{what} ended by {text}{where}"
    if isinstance(error, SyntaxError):
        text, where = (
            error.msg,
            f" at {Path(error.filename).name}:{error.lineno}" if error.filename and error.lineno else "",
        )
    return f"{what} raised {type(error).__name__}{': ' + text[:300] if text else ''}{where}"


def _of_a_worker(text: str) -> str:
    """What a DataLoader's worker raised, of the text of its whole traceback: the exception, and the deepest line of the user's."""
    places = [(f, n) for f, n in re.findall(r'File "([^"]+)", line (\d+)', text) if not not_the_users(f)]
    last = next((line for line in reversed(text.splitlines()) if line.strip() and not line[0].isspace()), "an error")
    return f"{last[:300]} in a worker{f' at {Path(places[-1][0]).name}:{places[-1][1]}' if places else ''}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a class of the user's: its name is what can be told
        return ""


def _where(error: BaseException) -> str:
    own = user_frames(error)
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}" if own else ""
