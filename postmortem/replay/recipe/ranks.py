"""How many ranks a recipe needs, and the error that says that they have to be started."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from postmortem.core.errors import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.replay.recipe.load import Recipe


class RanksNeeded(ReplayError):
    """A recipe of several ranks, which one process cannot run. checkpoint: the one to start from; aim (`roll.aim.Aim`),
    config: of the replay."""

    def __init__(self, recipe: Recipe, ranks: int, checkpoint: Path | None, aim: Any, config: dict[str, Any]) -> None:
        super().__init__(f"{recipe.path.name} needs ranks={ranks}: `postmortem replay` starts them, one process cannot")
        self.recipe, self.ranks, self.checkpoint = recipe, ranks, checkpoint
        self.aim, self.config = aim, config


_RANK = re.compile(r"(rank[_-]?)\d+")


def own_file(path: Path, rank: int) -> Path:
    """The checkpoint of a rank, where each has its own: of ``…rank0…`` that of this rank, if it is there."""
    own = path.with_name(_RANK.sub(rf"\g<1>{rank}", path.name))
    return own if own.exists() else path


def ranks_saved(path: Path) -> int:
    """How many ranks have a checkpoint of their own like this one; 0 if its name has no rank."""
    if not _RANK.search(path.name):
        return 0
    like = _RANK.sub("", path.name)
    return sum(bool(_RANK.search(p.name)) and _RANK.sub("", p.name) == like for p in path.parent.iterdir())


def ranks_written(recipe: Recipe) -> int:
    """The number that the recipe's file gives as ``ranks=``; 1 if it gives none, or not as a number.

    Read from the source: a recipe that shards its model cannot be called before its ranks are there. Where functions of
    the file give several numbers, that of the recipe's own function counts.
    """
    try:
        tree: ast.AST = ast.parse(recipe.path.read_text("utf-8"))
    except (SyntaxError, ValueError):  # told when the recipe is loaded
        return 1
    own: list[ast.AST] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == recipe.function]
    numbers = [number for part in own or [tree] for number in _numbers(part)] or list(_numbers(tree))
    return max(numbers, default=1)


def _numbers(tree: ast.AST) -> list[int]:
    words = [word for call in ast.walk(tree) if isinstance(call, ast.Call) for word in call.keywords]
    values = [w.value.value for w in words if w.arg == "ranks" and isinstance(w.value, ast.Constant)]
    return [value for value in values if type(value) is int]
