"""Tables of one run that differ in the split of the data: ``train.csv`` beside ``val.csv``."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from postmortem.runs.claimed import ClaimedFile

    Words = dict[Path, frozenset[bytes]]

SPLITS = {"train", "training", "learn", "val", "valid", "validation", "eval", "evaluation", "dev", "test"}
"""Names of the parts of the data, in lower case; CatBoost writes ``learn`` and ``test``."""
_HEAD = 1 << 14
"""Bytes in which the first line of a table ends."""


def name_splits(files: Iterable[ClaimedFile], words: Words) -> None:
    """Gives such tables of one run the prefix of their tags; `words` as in `split_tables`."""
    tables: dict[tuple[Path, str], list[ClaimedFile]] = defaultdict(list)
    for file in files:
        if file.content == "table":
            tables[file.run].append(file)
    for of_a_run in (several for several in tables.values() if len(several) > 1):
        splits = {
            path: split for group in split_tables((f.path for f in of_a_run), words) for path, split in group.items()
        }
        for file in of_a_run:
            file.prefix = splits.get(file.path, file.prefix)


def place_split_tables(files: Iterable[ClaimedFile], root: Path, words: Words) -> None:
    """Moves tables of one name in sibling folders of splits, ``train/metrics.jsonl`` and ``eval/metrics.jsonl``, to the
    run of the folder above, with the split as the prefix of their tags."""
    tables: dict[tuple[Path, str], list[ClaimedFile]] = defaultdict(list)
    for file in files:
        folder = file.path.parent
        if file.content == "table" and not file.placed and folder != root and folder.name.lower() in SPLITS:
            tables[folder.parent, file.path.name].append(file)
    for (above, _), several in tables.items():
        if len(several) > 1 and _same_columns([file.path for file in several], words):
            for file in several:
                file.home, file.prefix = above, file.path.parent.name


def split_tables(tables: Iterable[Path], words: Words) -> list[dict[Path, str]]:
    """Groups of tables whose names differ only in the split, and whose columns are the same: table -> its split.

    A table whose columns name the split, ``val_loss``, has other columns than the one of the training. `words` keeps
    those of the first lines for the next call.
    """
    named: dict[tuple[Path, str], dict[Path, str]] = defaultdict(dict)
    for path in tables:
        parts = re.findall(r"[^\W_]+", path.stem.lower())
        found = [part for part in parts if part in SPLITS]
        if len(found) == 1:
            rest = " ".join("" if part == found[0] else part for part in parts)
            named[path.parent, f"{rest} {path.suffix.lower()}"][path] = found[0]
    return [group for group in named.values() if len(set(group.values())) > 1 and _same_columns(group, words)]


def _same_columns(tables: Iterable[Path], words: Words) -> bool:
    """Whether the words of the first lines are the same, or those of one table are among those of the other."""
    for path in tables:
        if path not in words:
            words[path] = frozenset(re.findall(rb"(?<![\d.])[A-Za-z_][^\s,;|\"]*", _first_line(path)))
    first = sorted((words[path] for path in tables), key=len)
    return bool(first[0]) and all(smaller <= larger for smaller, larger in pairwise(first))


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline(_HEAD)
    except OSError:  # that it cannot be read is said where it is read
        return b""
