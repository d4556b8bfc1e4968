"""Reports of runs of which no file changed since the last scan: neither read nor judged again.

A report depends on the files of its run, on all else in the run's folder and in the folders above that belong to it
(settings, checkpoints, scripts), on captures, and on files elsewhere that were looked at (`core.outside`). The states
of the first three are a part of the entry's name, those of the last are in the entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.checkpoints.captures import homes_of
from postmortem.checkpoints.find import folders_above
from postmortem.checkpoints.histories import history_of
from postmortem.core import installed
from postmortem.core.outside import State, collected, state_of
from postmortem.core.registry import collected_faults
from postmortem.runs import cache as entries
from postmortem.runs.stored_reading import DamagedReading, NotStorable, restored, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from postmortem.core.report import RunReport
    from postmortem.runs.claimed import RunFiles

_MOST_ENTRIES, _DEEPEST = 5_000, 8
"""Of a run with more files, or deeper folders, no report is kept: looking at them would cost what it saves."""


def reports_of(
    files: RunFiles,
    roots: Sequence[Path],
    shared: Collection[Path],
    how: Sequence[str],
    make: Callable[[RunFiles], list[RunReport]],
) -> list[RunReport]:
    """The reports of the runs in `files`, from the cache in use if nothing changed; `make` makes them else.

    `how` is all that the report depends on beside files: options, selected detectors.
    """
    used = entries.in_use()
    states = None if used is None else _states(files, roots, shared, used.listed)
    if used is None or states is None:
        return make(files)
    name = _name(files, states, [str(folder) for folder in (files.path, *files.path.parents) if folder in shared], how)
    if (known := _known(used, name)) is not None:
        return known
    with collected_faults() as faults, collected() as outside:
        reports = make(files)
    newest = max((max(state[2:4]) for _, state in [*states, *outside.items()] if state), default=0)
    lasting = not faults and not any(report.ended == "running" for report in reports)
    if lasting and time.time() - newest / 1e9 > entries.settled_after():
        try:
            used.keep(name, stored([outside, reports]))
        except NotStorable:  # of a plugin
            return reports
    return reports


def _known(used: entries.Cache, name: str) -> list[RunReport] | None:
    data = used.known(name)
    if data is None:
        return None
    try:
        outside, reports = restored(data)
    except (DamagedReading, ValueError, TypeError) as error:
        used.damaged(name, error)
        return None
    return reports if all(state_of(path) == state for path, state in outside.items()) else None


def _states(
    files: RunFiles, roots: Sequence[Path], shared: Collection[Path], listed: dict[str, State]
) -> list[tuple[str, State]] | None:
    """The path and state of all that a report may depend on; None if it is too much, or a folder cannot be listed.

    `listed` are the folders that were listed for other runs of this scan.
    """
    states: list[tuple[str, State]] = [(str(part.path), state_of(part.path)) for part in files.parts]
    if history_of(files.path) is not None or not all(state for _, state in states):
        return None
    if any(getattr(part.reader, "other_files", False) for part in files.parts):
        return None  # which ones, only the reader knows
    folder = files.path.is_dir()
    try:
        if folder:
            seen: set[tuple[int, int]] = set()
            for top in (files.path, *folders_above(files.path, roots, shared)):
                _add_below(str(top), states, seen)
        above = () if folder else (files.path.parent, *folders_above(files.path.parent, roots, shared))
        elsewhere = dict.fromkeys((*(part.path.parent for part in files.parts), *above))
        states += [
            (str(beside), _files_in(str(beside), listed))
            for beside in elsewhere
            if not folder or not beside.is_relative_to(files.path)
        ]
        for home in homes_of(files.path):
            if home.is_dir():
                _add_below(str(home), states, set())
    except (OSError, _TooMuch):
        return None
    return states


class _TooMuch(Exception):
    """There are more files than are worth a look."""


def _add_below(folder: str, states: list[tuple[str, State]], seen: set[tuple[int, int]], depth: int = 0) -> None:
    """Adds what lies below a folder; links are followed, each folder once."""
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(folder) as found:
        listed = sorted(found, key=lambda entry: entry.name)
    if depth > _DEEPEST or len(states) + len(listed) > _MOST_ENTRIES:
        raise _TooMuch
    for entry in listed:
        if entry.is_dir():
            states.append((entry.path, ()))
            _add_below(entry.path, states, seen, depth + 1)
        else:
            states.append((entry.path, state_of(entry.path)))


def _files_in(folder: str, listed: dict[str, State]) -> State:
    """One state for the files in a folder, which changes with each of them; those below it do not count."""
    if folder not in listed:
        with os.scandir(folder) as found:
            paths = sorted(entry.path for entry in found if not entry.is_dir())
        states = [(path, state_of(path)) for path in paths]
        digest = int.from_bytes(_digest(states)[:8], "big")
        last = [max((state[k] for _, state in states if state), default=0) for k in (2, 3)]
        listed[folder] = (digest, len(paths), *last)
    return listed[folder]


def _digest(key: object) -> bytes:
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=20).digest()


def _name(files: RunFiles, states: list[tuple[str, State]], shared: list[str], how: Sequence[str]) -> str:
    parts = [[str(p.path), p.reader.kind, p.prefix, p.rank, p.stream] for p in files.parts]
    key: list[Any] = [files.name, os.path.abspath(files.path), str(files.path), parts, shared, states, *how, *_here()]
    return _digest(key).hex() + entries.REPORT_SUFFIX


def _here() -> list[str]:
    """What else differs from one scan to another: this package, torch, the working directory and the time zone."""
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted
        folder = ""
    return [*_versions(), folder, *time.tzname]


@cache
def _versions() -> list[str]:
    return [
        __version__,
        entries.code("core", "readers", "signatures", "runs", "judging", "detectors", "diagnoses", "checkpoints"),
        *(installed.version(package) for package in ("torch", "safetensors", "numpy")),
    ]
