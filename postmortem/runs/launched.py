"""How a run was started: from its log, W&B's metadata, or the job script in its folder.

Known are a command as a shell prints it (`set -x`, a prompt) or as a program does (`sys.argv`, `Namespace(...)`), and
the call of a trainer in a shell script without variables. Where several programs were called, the one counts whose
name says that it trains; if that is not one, none.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.checkpoints.histories import history_of
from postmortem.core.launched import Launched
from postmortem.core.outside import looked_at
from postmortem.core.patterns import later
from postmortem.readers import content_of
from postmortem.runs.names_in import NamesIn
from postmortem.runs.script_options import options_of, resume_words, spelled, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from postmortem.runs.claimed import RunFiles

_HEAD = 1 << 16
_MOST_FILES = 8  # all ranks of a job are started by one command
_MOST_SCRIPTS = 32
_ANNOUNCED = later(
    r"\s*(?:\++ |\$ |(?:[^\s@]++@[^\s$#]++)?[$#] |(?:command(?: line)?|cmd|running)\s*[:=]\s*)(.+)", re.I
)
_ARGV = later(r"\bargv['\"]?\s*[:=]\s*(\[.*\])")
_NAMESPACE = later(r"\bNamespace\((.*)\)")
_PYTHON = later(r"python(\d(\.\d+)?)?")
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "composer"}
_BEFORE = {"srun", "exec", "nohup", "time", "env", "stdbuf", "nice", "numactl"}
_ENDS = later(r"[|&;<>]+|\d*>+&?\d*|\d>\S+")  # a pipe or a redirection: not part of the command
_TRAINING = later(r"\.backward\(|\.fit\(|Trainer\(")
"""What the text of a script holds that trains."""
_TRAINS = later(r"train|tune|main|run|fit|sft|dpo|pretrain", re.I)
_ASSIGNMENT = later(r"[A-Za-z_]\w*=.*")
_SHELL = (".sh", ".slurm", ".sbatch", ".bash")
_EXPANDED = later(r"[$`*?{}()\[\]~]")  # the shell makes other words of it


class _Call(NamedTuple):
    """A command that was found, and where."""

    words: tuple[str, ...]
    script: str  # path of the .py, or module.name
    source: str


def launched(
    files: RunFiles, config: dict[str, Any], shared: Collection[Path], there: NamesIn | None = None
) -> Launched | None:
    """The command that started the run of these files, as they say it; None where they do not.

    `there` are the names in its folders.
    """
    there = there or NamesIn(shared)
    folder = files.path if files.path.is_dir() else files.path.parent
    folders = [folder, *dict.fromkeys(part.path.parent for part in files.parts if part.path.parent != folder)]
    logs = [part.path for part in files.parts if content_of(part.reader) == "output"][:_MOST_FILES]
    heads = [(path, _head(path)) for path in logs]
    call = (
        _only(_of_wandb((part.path for part in files.parts[:_MOST_FILES]), there))
        or _only(_of_log(heads))
        or (_only(_of_scripts(folder)) if folder not in shared and there.may_end(folder, _SHELL) else None)
        or _of_namespace(heads, folder)
    )
    return _launched(call, folders, config) if call is not None else None


def only_script(
    files: RunFiles, config: dict[str, Any], shared: Collection[Path], there: NamesIn | None = None
) -> Launched | None:
    """A call, without options, of the one script in the run's folder that trains; None if there is none, or several.

    A folder that several runs share (`shared`) does not count.
    """
    folder = _folder(files)
    if folder in shared or not (there or NamesIn()).may_end(folder, (".py",)):
        return None
    scripts = [p for p in _named(folder, ".py")[:_MOST_SCRIPTS] if p.stem != "recipe" and p.is_file()]
    training = [p for p in scripts if _TRAINING.search(text_of(p))]
    if len(training) != 1:
        return None
    call = _Call(("python", training[0].name), training[0].name, str(training[0]))
    return replace(_launched(call, [folder], config), guessed=True)


def has_recipe(files: RunFiles, there: NamesIn | None = None) -> bool:
    """Whether a recipe.py lies in the run's folder or beside it."""
    folder = _folder(files)
    beside = looked_at(os.path.join(folder, os.pardir, "recipe.py"))  # also if that is a link
    own = looked_at(os.path.join(folder, "recipe.py"))
    return os.path.isfile(beside) or ((there or NamesIn()).may_hold(folder, "recipe.py") and os.path.isfile(own))


def _folder(files: RunFiles) -> Path:
    """The folder of a run; of a history alone that in which its program was started."""
    folder = files.path if files.path.is_dir() else files.path.parent
    found = history_of(folder)
    return found[1] if found is not None else folder


def _launched(call: _Call, folders: list[Path], config: dict[str, Any]) -> Launched:
    where = _started_in(call.script, folders)
    script = (where or Path()) / _as_path(call.script)
    return Launched(
        call.words,
        source=call.source,
        folder=str(where) if where is not None and where.resolve() != Path.cwd() else None,
        resume=resume_words(script, call.words, config) if looked_at(script).is_file() else None,
    )


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return ""  # its reading says why


def _only(calls: Iterable[_Call]) -> _Call | None:
    """The last call of the one script that trains; None if there is none, or several may be it."""
    found = list(calls)
    if len({call.script for call in found}) > 1:
        found = [call for call in found if _TRAINS.search(Path(call.script).stem)]
    return found[-1] if len({call.script for call in found}) == 1 else None


def _of_log(heads: list[tuple[Path, str]]) -> Iterator[_Call]:
    for path, text in heads:
        for line in text.splitlines():
            if announced := _ANNOUNCED.fullmatch(line):
                call = _call(announced[1], str(path))
            elif "argv" in line and (argv := _ARGV.search(line)):
                words = _literal(argv[1])
                call = _called(["python", *map(str, words)], str(path)) if isinstance(words, list) else None
            else:
                continue
            if call is not None:
                yield call


def _of_wandb(paths: Iterable[Path], there: NamesIn) -> Iterator[_Call]:
    for folder in dict.fromkeys(path.parent for path in paths):
        if there.may_hold(folder, "wandb-metadata.json"):
            yield from _of_metadata(folder)
        if there.may_hold(folder, "files"):
            yield from _of_metadata(folder / "files")


def _of_metadata(folder: Path) -> Iterator[_Call]:
    try:
        said = json.loads((folder / "wandb-metadata.json").read_text("utf-8"))
        program, args = str(said["program"]), [str(word) for word in said.get("args") or []]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # not there, or of another form: then nothing is known
    if not looked_at(Path(program)).is_file() and isinstance(said.get("codePath"), str):
        program = said["codePath"]  # relative to the repository
    if call := _called(["python", program, *args], str(folder / "wandb-metadata.json")):
        yield call


def _named(folder: Path, *endings: str) -> list[Path]:
    """The paths in a folder with one of these endings; none of a folder that cannot be listed."""
    try:
        return [folder / name for name in sorted(name for name in os.listdir(folder) if name.endswith(endings))]
    except OSError:
        return []


def _of_scripts(folder: Path) -> Iterator[_Call]:
    """The calls in the shell scripts of a folder; a line with variables says too little."""
    scripts = [p for p in _named(folder, *_SHELL) if p.is_file()]
    for path in scripts[:_MOST_SCRIPTS]:
        for line in text_of(path).replace("\\\n", " ").splitlines():
            if not _EXPANDED.search(line) and (call := _call(line, str(path))):
                yield call


def _of_namespace(heads: list[tuple[Path, str]], folder: Path) -> _Call | None:
    """The command whose parsed arguments a log shows, if one script of the folder has options of these names."""
    for path, text in heads:
        for found in _NAMESPACE.finditer(text) if "Namespace(" in text else ():
            values = _keywords(found[1])
            scripts = _named(folder, ".py")[:_MOST_SCRIPTS] if values else []
            fitting = [(s, options) for s in scripts if (options := options_of(s)).keys() >= values.keys()]
            if len(fitting) == 1:
                script, options = fitting[0]
                words = spelled(values, options)
                return _Call(("python", script.name, *words), script.name, str(path)) if words is not None else None
    return None


def _keywords(text: str) -> dict[str, Any]:
    """The arguments of a printed `Namespace(...)`; {} where one is no literal."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        return {}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(line: str, source: str) -> _Call | None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # an open quotation mark: no command
        return None
    end = next((k for k, word in enumerate(words) if _ENDS.fullmatch(word)), len(words))
    return _called(words[:end], source)


def _called(words: list[str], source: str) -> _Call | None:
    """The call of a Python script by `words`; what only a cluster or a shell needs is left out."""
    at = next((k for k, word in enumerate(words) if _starts(word)), None)
    if at is None or not all(_ASSIGNMENT.fullmatch(w) or w in _BEFORE or w[0] == "-" for w in words[:at] if w):
        return None
    names, rest = [w for w in words[:at] if _ASSIGNMENT.fullmatch(w)], words[at + 1 :]
    script = next((w for w in rest if w.endswith(".py")), None)
    if script is None:
        script = rest[rest.index("-m") + 1] if "-m" in rest[:-1] else None
    if script is None or not all(word.isprintable() for word in words):
        return None
    program = (
        words[at] if Path(words[at]).name == words[at] or looked_at(Path(words[at])).is_file() else Path(words[at]).name
    )
    return _Call((*(("env", *names) if names else ()), program, *rest), script, source)


def _starts(word: str) -> bool:
    name = Path(word).name
    return bool(_PYTHON.fullmatch(name)) or name in _LAUNCHERS


def _as_path(script: str) -> Path:
    return Path(script) if script.endswith(".py") else Path(*script.split(".")).with_suffix(".py")


def _started_in(script: str, folders: list[Path]) -> Path | None:
    """The folder in which the command finds its script: the working directory, one of the run or one above it."""
    path = _as_path(script)
    if path.is_absolute() or looked_at(path).is_file():
        return None
    above = (parent for folder in folders for parent in (folder, *folder.parents[:3]))
    return next((folder for folder in above if looked_at(folder / path).is_file()), None)
