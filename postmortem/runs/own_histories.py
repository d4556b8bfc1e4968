"""One training is one run: the history that `postmortem run` kept of it joins the log that the training wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.checkpoints.histories import history_of, noted_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from postmortem.runs.claimed import ClaimedFile

    Place = tuple[Path, str]
    """What files of one run have in common: the folder, and the name within it."""


def is_history(file: ClaimedFile) -> bool:
    """Whether `postmortem run` wrote it."""
    named = file.path.suffix == ".jsonl" and file.path.name.startswith("history")
    return named and history_of(file.path.parent) is not None


def join_histories(histories: Sequence[ClaimedFile], others: Sequence[ClaimedFile]) -> None:
    """Moves each history into the run of `others` whose training it is of; one without such a run stays a run.

    That run is noted with the history. Where nothing is noted, it is the only one below the folder in which the
    program was started. Of several histories of one log the newest is of what the log holds now.
    """
    taken: set[Place] = set()
    for folder in sorted({file.path.parent for file in histories}, reverse=True):
        place = _place_of(folder, others)
        if place is None or place in taken:
            continue
        taken.add(place)
        for file in histories:
            if file.path.parent == folder:
                file.home, file.key = place


def _place_of(folder: Path, others: Sequence[ClaimedFile]) -> Place | None:
    """The run of the training whose history lies in `folder`."""
    found = history_of(folder)
    assert found is not None
    session, start = found
    known, log = noted_log(folder)
    if known:
        fitting = [f for f in others if log is not None and _is_of(f, log)]
        if not fitting and log is not None:  # what the program printed lies beside the folder of its log, and joined it
            fitting = [f for f in others if f.path.resolve().is_relative_to(log)]
    elif folder == session:
        fitting = [f for f in others if f.path.is_relative_to(start)]
    else:  # of another training of the same command
        fitting = []
    places = {f.run for f in fitting}
    return places.pop() if len(places) == 1 else None


def _is_of(file: ClaimedFile, log: Path) -> bool:
    """Whether a file is of the run at `log`, which is one file or the folder of the run."""
    return file.path.resolve() == log or (file.home.resolve() == log and not file.key)


def name_of_history(home: Path, root: Path, *, alone: bool) -> str | None:
    """The name of a run that is a history and no more: the folder in which its program was started, and which of its
    trainings it is if it is not `alone`. None for another run, and if that folder is not below `root`."""
    found = history_of(home)
    if found is None or not found[1].is_relative_to(root):
        return None
    session, start = found
    at = start.relative_to(root).as_posix() if start != root else start.resolve().name
    return at if alone and home == session else f"{at}/{home.relative_to(session.parent).as_posix()}"
