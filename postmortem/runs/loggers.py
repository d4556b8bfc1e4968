"""Which files two loggers of one training write: a table in one folder, event files in another, or beside its text.

Those of a Lightning trainer both hold its hyperparameters
(https://lightning.ai/docs/pytorch/stable/extensions/logging.html); others are named by what they hold.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.checkpoints.find import find_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from postmortem.runs.claimed import ClaimedFile

FOLDERS_OF_EVENTS = ("tb", "tensorboard", "tb_logs", "tblogs", "tfevents", "events", "summaries", "summary")
"""Names of folders that say that event files lie in them, in lower case."""
_TABLES = ("csv", "csv_logs", "csvlogs", "jsonl", "tables")
NAMELESS = {"", "nohup", "output", "console"}
"""What a shell or a notebook calls the output of anything."""
_NAMES_OF_ANY_LOG = {"train", "training", "trainer", "log", "run", "main", "job", "stdout", *NAMELESS}
_MOST_TABLES = 4
"""Tables that one program may write beside its log: of updates, episodes, epochs, evaluations."""
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


def one_log_and_its_tables(members: Sequence[ClaimedFile], keys: Mapping[Path, str]) -> bool:
    """Whether the tables of a folder are of the only text in it: ``train.log``, or one beside checkpoints.

    keys: path -> what would name its run.
    """
    texts = {keys[file.path] for file in members if file.is_output}
    tables = [file for file in members if not file.is_output]
    if len(texts) != 1 or not tables or len(tables) > _MOST_TABLES:
        return False
    named_by_all = len(tables) == 1 and texts.pop().lower() in _NAMES_OF_ANY_LOG
    return named_by_all or bool(find_checkpoints(members[0].home))
