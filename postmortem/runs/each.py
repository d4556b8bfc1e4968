"""The runs of the files that were found, with their checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.checkpoints.find import checkpoints_of
from postmortem.checkpoints.of_run import name_parameters
from postmortem.core.registry import collected_faults
from postmortem.runs.assemble import read_runs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from postmortem.core.run import Run
    from postmortem.runs.claimed import RunFiles


def read(
    files: RunFiles, roles: Mapping[str, str] | None, roots: Sequence[Path], shared: Collection[Path]
) -> list[Run]:
    """The run of these files below `roots`, or those that were written at the same time, with their checkpoints.

    Checkpoints are not searched for in folders of several runs (`shared`).
    """
    runs = read_runs(files, roles=roles, roots=roots, shared=shared)
    if not files.path.is_dir() or len(runs) > 1:
        return runs
    (run,) = runs
    with collected_faults() as faults:
        found = checkpoints_of(files.path, roots, shared)
        events = name_parameters(run.event_list, found)
    if not found and not faults:
        return runs
    return [replace(run, checkpoints=found, event_list=events, problems=[*run.problems, *faults])]
