"""The one run at a path, and that run again later."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from postmortem.core.errors import UsageError
from postmortem.runs.claimed import RunFiles
from postmortem.runs.each import read
from postmortem.runs.group import discover
from postmortem.runs.kept import Kept

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from postmortem.core.run import Run


def load_run(path: Path, roles: Mapping[str, str] | None, kept: Kept | None = None) -> Run:
    """The one run at `path`; of files in `kept` only what is new is read.

    NotFoundError if the path does not exist, UsageError where it holds several runs.
    """
    kept = kept if kept is not None else Kept()
    found, problems = discover([path])
    if len(found) > 1:
        raise _several(path, [run.parts[0].path if run.path == path else run.path for run in found])
    files = found[0] if found else RunFiles(path.resolve().name, path)
    with kept.used():
        run, *others = read(files, roles, [path], ())
    if others:
        raise _several(path, [run.path, *(other.path for other in others)])
    return replace(run, problems=[*run.problems, *problems], reload=partial(load_run, path, roles, kept))


def _several(path: Path, runs: Sequence[Path]) -> UsageError:
    if len(set(runs)) == 1:
        return UsageError(f"{path} holds the rows of {len(runs)} programs that wrote at the same time; scan shows each")
    paths = ", ".join(map(str, runs[:10])) + (", …" if len(runs) > 10 else "")
    return UsageError(f"{path} holds {len(runs)} runs, load one of them: {paths}")
