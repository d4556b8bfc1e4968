"""What a repository of Aim holds beside the databases of the runs."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from postmortem.core.model import Problem
from postmortem.readers.aim.database import is_file_of_a_database

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.reading import Reading

FOLDER = ".aim"
_ABOUT = (
    "SELECT run.name, run.created_at, run.is_archived, experiment.name FROM run"
    " LEFT JOIN experiment ON experiment.id = run.experiment_id WHERE run.hash = ?"
)


def is_run(path: Path) -> bool:
    """Whether `path` is the file CURRENT of the database about a run."""
    return path.name == "CURRENT" and path.parts[-4:-2] == ("meta", "chunks")


def is_part_of_a_repository(path: Path) -> bool:
    """Whether `path` is a file of a repository, or of a database as it has: it is read with the run, or not at all."""
    return is_file_of_a_database(path) or (not is_run(path) and FOLDER in path.parts[-6:-1])


def add_names(database: Path, run: str, reading: Reading) -> None:
    """The name of a run, that of its experiment, and when it began, which are in a database of SQLite."""
    if not database.is_file():
        return
    import sqlite3  # most scans need none

    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as opened:
            opened.execute("PRAGMA trusted_schema = OFF")
            name, created, archived, experiment = opened.execute(_ABOUT, (run,)).fetchone() or (None, None, 0, None)
    except sqlite3.Error as error:
        what = f"damaged database: {error}"
        reading.problems.append(Problem(path=str(database), what=what, lost="the name of the run and its beginning"))
        return
    names = {"display_name": name, "project": experiment}
    reading.facts |= {fact: str(value) for fact, value in names.items() if value}
    if archived:
        reading.notes.append("the run is archived in Aim")
    try:
        reading.started = datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp() if created else None
    except (TypeError, ValueError, OverflowError):
        reading.notes.append("the time at which the run began cannot be read")
