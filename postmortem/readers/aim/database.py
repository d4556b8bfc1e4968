"""What a folder of RocksDB holds: the newest value of each key, read from its files without opening it as a database.

Nothing is locked or written, so that a running training is not disturbed, and no library of RocksDB is needed.
"""

from __future__ import annotations

import heapq
import re
from functools import partial
from typing import TYPE_CHECKING

from postmortem.core.model import Problem
from postmortem.readers.aim import sorted_table
from postmortem.readers.aim.bits import RANGE_DELETED, SET, DamagedError
from postmortem.readers.aim.write_log import LiveFiles, changes, live_files, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from postmortem.core.model import Extent
    from postmortem.readers.aim.bits import Entry
    from postmortem.readers.aim.write_log import Damage

CURRENT = re.compile(rb"MANIFEST-\d+\n")
"""What the file CURRENT of a database holds: the name of the list of its files."""
_FILES = re.compile(r"(?:CURRENT|IDENTITY|LOCK|LOG(?:\.old\.\d+)?|(?:MANIFEST|OPTIONS)-\d+|\d{6,}\.(?:log|sst|ldb))")
_TRIES = 3
"""How often a database is read whose files are replaced by its writer at the same time."""


def is_file_of_a_database(path: Path) -> bool:
    """Whether `path` is one of the files of a database of RocksDB or LevelDB, which are no logs of a training."""
    return _FILES.fullmatch(path.name) is not None and path.name != "CURRENT" and path.with_name("CURRENT").is_file()


def items(folder: Path, problems: list[Problem]) -> dict[bytes, bytes]:
    """The keys and values of the database in `folder`, sorted by key. Damage becomes a Problem, also a missing file."""
    for _ in range(_TRIES):
        found: list[Problem] = []
        gone: list[Path] = []
        entries = list(_entries(folder, found, gone))
        if not gone:
            break
    missing = "missing: the database names it"
    problems += [*found, *(Problem(path=str(file), what=missing, lost="what it held") for file in gone)]
    return _newest(entries)


def _entries(folder: Path, problems: list[Problem], gone: list[Path]) -> Iterator[Entry]:
    """All changes that the files of the database hold, in no order."""
    live = _live_files(folder, problems)
    for number in sorted(live.tables):
        file = folder / f"{number:06d}.sst"
        yield from _of_file(file, sorted_table.entries, problems, gone)
    for file in sorted(folder.glob("*.log")):
        if file.stem.isdigit() and int(file.stem) >= live.first_log:
            yield from _of_file(file, _changes, problems, gone)


def _live_files(folder: Path, problems: list[Problem]) -> LiveFiles:
    """The files that the database names; all that are there, with a Problem, where it cannot be known."""
    current = folder / "CURRENT"
    try:
        name = current.read_bytes()
        if not CURRENT.fullmatch(name):
            raise DamagedError("it names no list of files")
        current = folder / name.decode().strip()
        bad: list[str] = []
        live = live_files(current.read_bytes(), lambda _, what, *__: bad.append(what))
        if bad:
            raise DamagedError(bad[0])
        return live
    except (DamagedError, OSError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        kept = "all files that are there"
        problems.append(Problem(path=str(current), what=f"damaged: {what}", kept=kept, lost="which of them are valid"))
        return LiveFiles({int(file.stem) for file in folder.glob("*.sst") if file.stem.isdigit()})


def _of_file(
    file: Path,
    read: Callable[[bytes, Damage], Iterable[Entry]],
    problems: list[Problem],
    gone: list[Path],
) -> Iterator[Entry]:
    """The changes in one file of the database."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        gone.append(file)
        return
    except OSError as error:
        what = f"cannot be opened: {error.strerror}"
        problems.append(Problem(path=str(file), what=what, lost="the file", extent="file"))
        return
    try:
        yield from read(data, partial(_damaged, file, problems))
    except DamagedError as error:
        problems.append(Problem(path=str(file), what=f"damaged: {error}", lost="the file", extent="file"))


def _damaged(file: Path, problems: list[Problem], offset: int, what: str, extent: Extent = "records") -> None:
    what, lost = f"damaged: {what}", "what stands there"
    problems.append(Problem(path=str(file), offset=offset, what=what, lost=lost, extent=extent))


def _changes(data: bytes, damage: Damage) -> Iterator[Entry]:
    for record in records(data, damage):
        try:
            yield from changes(record)
        except DamagedError as error:
            damage(0, str(error))


def _newest(entries: list[Entry]) -> dict[bytes, bytes]:
    """The value of each key that was set and not deleted later."""
    newest: dict[bytes, tuple[int, int, bytes]] = {}
    ranges: list[tuple[bytes, int, bytes]] = []
    for key, sequence, kind, value in entries:
        if kind == RANGE_DELETED:
            ranges.append((key, sequence, value))
        elif key not in newest or newest[key][0] < sequence:
            newest[key] = sequence, kind, value
    ranges.sort()
    values: dict[bytes, bytes] = {}
    over: list[tuple[int, bytes]] = []
    """Of the ranges that began, the latest first: minus its sequence number, the key after its last."""
    after = 0
    for key in sorted(newest):
        while after < len(ranges) and ranges[after][0] <= key:
            heapq.heappush(over, (-ranges[after][1], ranges[after][2]))
            after += 1
        while over and over[0][1] <= key:
            heapq.heappop(over)
        sequence, kind, value = newest[key]
        if kind == SET and not (over and -over[0][0] > sequence):
            values[key] = value
    return values
