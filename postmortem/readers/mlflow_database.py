"""Reads the runs in a SQLite database of MLflow."""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.core.model import Problem
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.readers import reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Ended
    from postmortem.readers import Content

_MAGIC = b"SQLite format 3\0"
_TABLES = {"experiments", "runs", "metrics", "params"}
_ENDS: dict[str, Ended] = {"RUNNING": "running", "FINISHED": "completed", "FAILED": "crashed", "KILLED": "killed"}
"""RunStatus by name; SCHEDULED is a run that has not begun."""
_UNFINISHED = ("-wal", "-journal")
"""Endings of the files beside a database that hold changes which are not, or not wholly, in it."""
_INFINITE = 1.7976931348623e308
"""MLflow stores infinity as the largest number of fp64, as the database has none."""


@reader
class MLflowDatabase:
    """The runs in MLflow's SQLite database (``sqlite:///mlflow.db``), each under the path ``mlflow.db/RUN_ID``.

    The values of all metrics are put in the order of their times. Parameters are the configuration, the status is how
    the run ended; a run that was deleted in MLflow is still in the database, and a note says so. The file is opened for
    reading only; one that was not closed (with ``-wal`` or ``-journal`` beside it) is copied first.

    Format: mlflow/store/tracking/dbmodels/models.py; https://www.sqlite.org/fileformat.html.
    """

    kind: ClassVar[str] = "mlflow-db"
    priority: ClassVar[int] = 25
    content: ClassVar[Content] = "history"
    other_files: ClassVar[bool] = True

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A SQLite database with the tables of MLflow, whatever its name; one that is damaged, by its name."""
        if not head.startswith(_MAGIC):
            return False
        try:
            with _opened(path) as database:
                return _tables(database) >= _TABLES
        except sqlite3.DatabaseError:
            return "mlflow" in path.name.lower()

    @staticmethod
    def runs(path: Path) -> list[Path]:
        """The paths of the runs in the database, in the order in which they were made."""
        with suppress(sqlite3.DatabaseError), _opened(path) as database:
            return [path / str(run) for (run,) in database.execute("SELECT run_uuid FROM runs ORDER BY rowid")]
        return []

    @staticmethod
    def home(path: Path) -> Path | None:
        """A run of the database is by itself."""
        return path

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the run of the path ``DATABASE/RUN_ID``; of the path of the database alone, why it has none."""
        file, run = (path.parent, path.name) if path.parent.is_file() else (path, "")
        reading = Reading(source="mlflow", path=str(path))
        builder = PointsBuilder()
        lost = "the rest of the run" if run else "the file"
        try:
            with _opened(file) as database:
                if run:
                    _read_run(database, run, reading, builder)
                else:
                    database.execute("SELECT run_uuid FROM runs").fetchone()
                    reading.notes.append("an MLflow database without runs")
        except sqlite3.DatabaseError as error:
            reading.problems.append(Problem(path=str(path), what=f"damaged database: {error}", lost=lost))
        if (missing := _missing_bytes(file)) and not reading.problems:
            what = f"truncated: {missing} bytes are missing at the end of the database"
            reading.problems.append(Problem(path=str(path), what=what, lost="what they held", extent="cut"))
        reading.points = builder.build()
        kept = f"{len(reading.points)} numbers"
        reading.problems = [replace(problem, kept=kept) for problem in reading.problems]
        return reading


def _missing_bytes(file: Path) -> int:
    """How many bytes the file has fewer than its header says (https://sqlite.org/fileformat2.html, 1.3)."""
    if any(Path(f"{file}{ending}").is_file() for ending in _UNFINISHED):
        return 0  # the last pages may still be in the log
    with file.open("rb") as stream:
        head = stream.read(100)
        size = stream.seek(0, 2)
    if len(head) < 100 or head[24:28] != head[92:96]:  # by a version before 3.7, which does not write the number
        return 0
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    return max(0, pages * (65_536 if page == 1 else page) - size)


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The database in a file, which is not changed, nor anything beside it. OSError, sqlite3.DatabaseError."""
    with file.open("rb"), tempfile.TemporaryDirectory(prefix="postmortem-") as folder:
        beside = [Path(f"{file}{ending}") for ending in _UNFINISHED]
        if any(other.is_file() for other in beside):
            copied = Path(folder) / "database"
            for other, ending in zip((file, *beside), ("", *_UNFINISHED), strict=True):
                with suppress(FileNotFoundError):
                    shutil.copyfile(other, f"{copied}{ending}")
            uri = copied.as_uri()
        else:
            uri = file.absolute().as_uri() + "?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True)
        try:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            yield database
        finally:
            database.close()


def _tables(database: sqlite3.Connection) -> set[str]:
    """The names of the tables, without views and those of extensions."""
    stored = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
    return {name for (name,) in database.execute(stored)}


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _read_run(database: sqlite3.Connection, run: str, reading: Reading, builder: PointsBuilder) -> None:
    """Adds what the database holds of a run."""
    about = "SELECT * FROM runs WHERE run_uuid = ?"
    rows = database.execute(about, (run,))
    names = [column[0] for column in rows.description]
    found = dict(zip(names, rows.fetchone() or (), strict=False))
    if not found:
        reading.problems.append(Problem(path=reading.path, what="no such run in the database", lost="the run"))
        return
    reading.started, reading.stopped = (_seconds(found.get(key)) for key in ("start_time", "end_time"))
    reading.ended = _ENDS.get(str(found.get("status")))
    reading.facts["run_id"] = run
    if found.get("lifecycle_stage") == "deleted":
        reading.notes.append("the run was deleted in MLflow, but not removed from the database")
    reading.config = dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,)))
    named = found.get("name")
    if not named and "tags" in _tables(database):
        tag = "SELECT value FROM tags WHERE run_uuid = ? AND key = 'mlflow.runName'"
        named = (database.execute(tag, (run,)).fetchone() or ("",))[0]
    if named:
        reading.facts["display_name"] = str(named)
    _read_metrics(database, run, reading, builder)


def _read_metrics(database: sqlite3.Connection, run: str, reading: Reading, builder: PointsBuilder) -> None:
    """Adds the values in the order of their times; of old databases without steps, those of a metric are counted."""
    there = _columns(database, "metrics")
    step = "step" if "step" in there else "ROW_NUMBER() OVER (PARTITION BY key ORDER BY timestamp, rowid) - 1"
    nan = "is_nan" if "is_nan" in there else "0"
    values = f"SELECT key, {step}, value, {nan}, timestamp FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"
    rows = database.execute(values, (run,))
    unreadable = 0
    for tag, at, value, is_nan, time in rows:
        if isinstance(at, int) and isinstance(value, (int, float)):
            number = math.copysign(math.inf, value) if abs(value) >= _INFINITE else float(value)
            builder.add(str(tag), at, math.nan if is_nan else number, _seconds(time) or math.nan)
        else:
            unreadable += 1
    if unreadable:
        what = f"{unreadable} rows of metrics whose step or value is no number"
        reading.problems.append(Problem(path=reading.path, what=what, lost="these values"))


def _seconds(milliseconds: Any) -> float | None:
    """Milliseconds since the epoch as seconds; None where there is no time."""
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) and milliseconds > 0 else None
