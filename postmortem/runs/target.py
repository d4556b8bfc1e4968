"""Which run, log or checkpoint the path given to a replay refers to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.captures import is_capture
from postmortem.checkpoints.find import is_checkpoint
from postmortem.core.errors import NotFoundError, UsageError
from postmortem.runs.group import discover
from postmortem.runs.names_in import lying_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.run import Run
    from postmortem.runs.claimed import RunFiles


@dataclass(frozen=True, slots=True)
class Target:
    """`files` are the run's (None: no log found), `checkpoint` the path if it is a checkpoint itself.

    `folder` is where checkpoints and a recipe are searched for; `root` was searched for logs; `shared` are the folders
    in and above which several runs lie.
    """

    folder: Path
    root: Path
    files: RunFiles | None = None
    checkpoint: Path | None = None
    shared: frozenset[Path] = field(default=frozenset())


def resolve(path: Path) -> Target:
    """The one run that `path` is, lies in or was saved by. Nothing is read but the beginnings of files.

    The log of a checkpoint is searched for in its folder and the one above. NotFoundError if there is no such path,
    UsageError if it holds several runs.
    """
    if not path.exists():
        raise NotFoundError(f"no such run or checkpoint: {path}")
    if is_capture(path):
        raise UsageError(f"{path} is a capture: `postmortem replay {path} -- COMMAND` repeats its step")
    if is_checkpoint(path):
        above = path.absolute().parent
        root, found = _first_with_runs([above, above.parent])
        only = found[0] if len(found) == 1 else None  # of several runs none is known to be the one that saved it
        return Target(path, root, only, path, shared_folders(found))
    root, found = _first_with_runs([path.parent if path.is_file() else path])
    mine, folder = found, path
    if path.is_file():
        mine = [run for run in found if any(part.path.resolve() == path.resolve() for part in run.parts)]
        folder = path.parent if mine else path
    if len(mine) > 1:
        raise UsageError(
            f"{folder} contains {len(mine)} runs, replay one of them: {', '.join(str(r.path) for r in mine[:10])}"
        )
    return Target(folder, root, mine[0] if mine else None, shared=shared_folders(found))


def chosen(runs: Sequence[Run], path: Path) -> Run | None:
    """The one of the runs read from one folder that `path` means; None for a checkpoint that any of several saved.

    UsageError where `path` is the folder of several.
    """
    if len(runs) == 1:
        return runs[0]
    if is_checkpoint(path):
        return None
    mine = [run for run in runs if path.resolve() in {Path(file).resolve() for s in run.sources for file in s.files}]
    if len(mine) == 1:
        return mine[0]
    listed = ", ".join(str(run.path) for run in runs[:10])
    raise UsageError(f"{path} contains {len(runs)} runs, replay one of them: {listed}")


def shared_folders(runs: Iterable[RunFiles]) -> frozenset[Path]:
    """The folders in and above which more than one of `runs` lies: a checkpoint there belongs to none of them."""
    return frozenset(folder for folder, count in lying_in(files.path for files in runs).items() if count > 1)


def _first_with_runs(folders: list[Path]) -> tuple[Path, list[RunFiles]]:
    for folder in folders:
        found, _ = discover([folder])
        if found:
            return folder, found
    return folders[-1], []
