"""Folders of event files whose parent is not there: ``add_scalars`` of torch made them."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.runs.file_names import creation_time, event_writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_TOGETHER = 2.0
"""Seconds in which one call makes all its folders."""
_HEAD = 1 << 12
"""Bytes in which the first tag of an event file is."""


def of_one_call(newest: dict[Path, Path]) -> set[Path]:
    """The folders that calls of ``add_scalars`` have made: a folder for each curve, ``Loss_train`` beside ``Loss_val``
    with the tag ``Loss`` in both.

    newest: folder -> event file. Runs of a sweep have folders side by side as well, but not the tag in their names.
    """
    made: dict[tuple[Path, str | None], list[Path]] = defaultdict(list)
    for folder, file in newest.items():
        if event_writer(file) is not None and folder.parent not in newest:
            made[folder.parent, event_writer(file)].append(folder)
    found: set[Path] = set()
    for folders in made.values():
        calls: dict[str, list[Path]] = defaultdict(list)
        for folder in folders if len(folders) > 1 else ():
            if tag := _tag_in_name(folder, newest[folder]):
                calls[tag].append(folder)
        for alike in calls.values():
            if len(alike) > 1 and _at_once(newest[folder] for folder in alike):
                found.update(alike)
    return found


def _at_once(files: Iterable[Path]) -> bool:
    times = [creation_time(file) for file in files]
    return max(times) - min(times) <= _TOGETHER


def _tag_in_name(folder: Path, file: Path) -> str | None:
    """The tag of the file that the name of its folder begins with, as ``add_scalars`` writes it; else None.

    In the protocol buffer of a summary a tag is field 1: the byte 0x0a, the length, the text.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError:  # that it cannot be read is said where it is read
        return None
    for length in (i for i, letter in enumerate(folder.name) if letter == "_" and 0 < i < 128):
        tag = re.escape(os.fsencode(folder.name[:length])).replace(b"_", b"[/_]")
        if re.search(b"\n" + re.escape(bytes([length])) + tag, head):
            return folder.name[:length]
    return None
