"""The options of a training script, read from its text without running it, and the one by which it resumes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.core.launched import CHECKPOINT
from postmortem.core.outside import looked_at
from postmortem.core.patterns import later

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 1 << 20
_MOST_IMPORTS = 20
_RESUMES = later(r"resum|restore|continue[-_]from")
_HELP_RESUMES = later(r"\bresum|\bcontinue (?:the )?(?:training )?from|\bgo on from|\brestore", re.I)
_PATHS = ("resume_from_checkpoint", "resume_from", "resume_path", "resume_ckpt", "resume_checkpoint", "resume")
"""Names of options that take the path of a checkpoint to go on from, in the order in which they count."""
_HYDRA = ("ckpt_path", "resume_from_checkpoint", "resume_from", "resume")


class Option(NamedTuple):
    """An option of a script: `flag` as it is typed, `takes` False for a switch, `default` None if it is none."""

    flag: str
    takes: bool
    path: bool
    default: Any
    about: str


def text_of(path: Path) -> str:
    """The text of a small file; "" if it cannot be read."""
    try:
        with looked_at(path).open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def options_of(script: Path) -> dict[str, Option]:
    """name -> option of all that `script` and the modules beside it define by argparse or click."""
    found: dict[str, Option] = {}
    for tree in _trees(script):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found |= _option(node) if node.func.attr in ("add_argument", "option") else {}
    return found


def _trees(script: Path) -> list[ast.Module]:
    """The script and what it imports from its own folder."""
    trees = [own := _parsed(script)]
    names = [node.module for node in ast.walk(own) if isinstance(node, ast.ImportFrom) and node.module]
    names += [alias.name for node in ast.walk(own) if isinstance(node, ast.Import) for alias in node.names]
    beside = (script.parent.joinpath(*name.split(".")).with_suffix(".py") for name in dict.fromkeys(names))
    return trees + [_parsed(path) for path in list(beside)[:_MOST_IMPORTS] if looked_at(path).is_file()]


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _option(call: ast.Call) -> dict[str, Option]:
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    flag = next((n for n in names if n.startswith("--")), next((n for n in names if n.startswith("-")), None))
    if flag is None:
        return {}
    given = {word.arg: word.value for word in call.keywords if word.arg}

    def said(name: str) -> Any:
        return value.value if isinstance(value := given.get(name), ast.Constant) else None

    kind = given["type"].id if isinstance(given.get("type"), ast.Name) else None  # type: ignore[attr-defined]
    action = "action" in given or bool(said("is_flag"))
    takes = not action or said("action") in ("store", "append")
    path = takes and kind not in ("int", "float", "bool")
    default = said("default") if takes or said("default") is not None else False
    name = str(said("dest") or flag.lstrip("-").replace("-", "_"))
    return {name: Option(flag, takes, path, default, str(said("help") or ""))}


def resume_words(script: Path, words: tuple[str, ...], config: dict[str, Any]) -> tuple[str, ...] | None:
    """The words that make `script` resume, with CHECKPOINT for the path; None if its text does not show them.

    `words`: the command as it was given; `config`: the settings of the run, whose names Hydra overrides.
    """
    text = text_of(script)
    by_path = {n: o for n, o in options_of(script).items() if o.path and _is_to_resume(n, o)}
    for name in [*(n for n in _PATHS if n in by_path), *(by_path if len(by_path) == 1 else ())]:
        return by_path[name].flag, CHECKPOINT
    if by_path:
        return None  # several, and none by a usual name
    if "HfArgumentParser" in text and "resume_from_checkpoint" in text:
        return "--resume_from_checkpoint", CHECKPOINT
    if "LightningCLI" in text and "fit" in words:
        return "--ckpt_path", CHECKPOINT
    if "hydra.main" in text:
        return next(((f"{key}={CHECKPOINT}",) for key in _HYDRA if key in config), None)
    return None


def _is_to_resume(name: str, option: Option) -> bool:
    return bool(_RESUMES.search(name) or _HELP_RESUMES.search(option.about))


def spelled(values: dict[str, Any], options: dict[str, Option]) -> list[str] | None:
    """The words on a command line that lead to these parsed values; None where that is not known."""
    words: list[str] = []
    for name, value in values.items():
        option = options[name]
        if value is None or value == option.default:
            continue
        if not option.takes:
            words += [option.flag]
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            words += [option.flag, str(value)]
        else:
            return None  # a list, a truth value or an object: how it was typed is not known
    return words
