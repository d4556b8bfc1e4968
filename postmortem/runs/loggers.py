"""Which folders two loggers of one training write to: a table in one, event files in the other.

Those of a Lightning trainer both hold its hyperparameters
(https://lightning.ai/docs/pytorch/stable/extensions/logging.html); others are named by what they hold.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FOLDERS_OF_EVENTS = ("tb", "tensorboard", "tb_logs", "tblogs", "tfevents", "events", "summaries", "summary")
"""Names of folders that say that event files lie in them, in lower case."""
_TABLES = ("csv", "csv_logs", "csvlogs", "jsonl", "tables")
_VERSION = re.compile(r"version_\d+")


def two_loggers(contents: Mapping[Path, set[str]], root: Path) -> dict[Path, Path]:
    """Folder -> the one of the run of both. contents: what each folder with logs below `root` holds."""
    joined: dict[Path, Path] = {}
    for first, second, home in (*_versions_in_a_row(contents), *_named(contents, root)):
        kinds = sorted([*contents[first], *contents.get(second, ())])
        if {first, second} & joined.keys() or kinds != ["events", "table"]:
            continue
        same = _same_hparams(first, second)
        if same or (same is None and _named_by_kind(first, second)):
            joined[first] = joined[second] = home
    return joined


def _versions_in_a_row(contents: Mapping[Path, set[str]]) -> Iterator[tuple[Path, Path, Path]]:
    """Without names of their own they take two versions: ``lightning_logs/version_0`` and ``version_1``."""
    versions = [home for home in contents if home.parent.name == "lightning_logs" and _VERSION.fullmatch(home.name)]
    for home in sorted(versions, key=lambda h: (h.parent, int(h.name[8:]))):
        yield home, home.with_name(f"version_{int(home.name[8:]) + 1}"), home


def _named(contents: Mapping[Path, set[str]], root: Path) -> Iterator[tuple[Path, Path, Path]]:
    """With names: ``csv/version_0`` and ``tb/version_0``, or ``csv`` and ``tb``; the only two folders of their kind.

    The run is the folder above both where that holds no other version.
    """
    pairs: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for home in contents:
        version = home.name if _VERSION.fullmatch(home.name) else ""
        pairs[home.parent.parent if version else home.parent, version].append(home)
    versions: dict[Path, int] = defaultdict(int)
    for above, _ in pairs:
        versions[above] += 1
    for (above, _), homes in sorted(pairs.items()):
        if len(homes) == 2 and above.is_relative_to(root):
            first, second = sorted(homes, key=lambda home: "table" not in contents[home])
            yield first, second, above if versions[above] == 1 else first


def _named_by_kind(table: Path, events: Path) -> bool:
    table, events = (home.parent if _VERSION.fullmatch(home.name) else home for home in (table, events))
    return table.name.lower() in _TABLES and events.name.lower() in FOLDERS_OF_EVENTS


def _same_hparams(a: Path, b: Path) -> bool | None:
    """None where one of the folders holds none."""
    try:
        return (a / "hparams.yaml").read_bytes() == (b / "hparams.yaml").read_bytes()
    except OSError:
        return None
