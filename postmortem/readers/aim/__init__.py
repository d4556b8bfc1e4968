"""Reads the runs in a repository of Aim, without Aim."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.core.model import Problem
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip
from postmortem.readers import reader
from postmortem.readers.aim.database import CURRENT, items
from postmortem.readers.aim.repository import add_names, is_run
from postmortem.readers.aim.run_tree import Container, nested, path_of, value_of

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content
    from postmortem.readers.aim.run_tree import Path as Keys

    Sequences = dict[Keys, dict[str, dict[int, Any]]]

_OBJECTS = {
    "aim.distribution": Skip.HISTOGRAMS,
    "aim.image": Skip.IMAGES,
    "aim.audio": Skip.AUDIO,
    "aim.text": Skip.TEXT,
    "aim.log_line": Skip.TEXT,
    "aim.log_record": Skip.TEXT,
}
"""What objects of Aim are, by its names; others are media."""
_OF_THE_MACHINE = "__system"
"""How the names begin of what Aim measures of the machine, and of notes about it."""
_COLUMNS = ("val", "step", "epoch", "time")


@reader
class Aim:
    """A run in a repository of Aim: the databases ``.aim/meta/chunks/RUN`` and ``.aim/seqs/chunks/RUN``.

    They are databases of RocksDB. Their files are read as they are, without Aim and without opening them as databases:
    nothing is locked or changed, and a training that goes on is not disturbed. A metric is named by its context and by
    what it is: ``loss`` in ``{"subset": "val"}`` is ``val/loss``. The values are put in the order of their times.
    Parameters are the configuration.

    Format: aim/storage/rockscontainer.pyx, aim/sdk/tracker.py of https://github.com/aimhubio/aim;
    https://github.com/facebook/rocksdb/wiki.
    """

    kind: ClassVar[str] = "aim"
    priority: ClassVar[int] = 25
    content: ClassVar[Content] = "history"
    other_files: ClassVar[bool] = True

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """The file that names the current state of the database about a run."""
        return is_run(path) and CURRENT.fullmatch(head) is not None

    @staticmethod
    def home(path: Path) -> Path | None:
        """The folder of the run."""
        return path.parent

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the run whose CURRENT, in the folder ``meta/chunks/RUN``, is `path`."""
        with path.open("rb"):
            reading = Reading(source=Aim.kind, path=str(path))
        run, root = path.parent.name, path.parent.parent.parent.parent
        reading.facts["run_id"] = run
        add_names(root / "run_metadata.sqlite", run, reading)
        meta = _below(("meta", "chunks", run), _tree(path.parent, reading))
        settings = _below(("attrs",), meta)
        reading.config = nested({keys: v for keys, v in settings.items() if not _of_the_machine(*keys[:1])})
        stopped = meta.get(("end_time",))
        reading.stopped = stopped if isinstance(stopped, float) else None
        folder = root / "seqs" / "chunks" / run
        sequences = _sequences(_tree(folder, reading) if folder.is_dir() else {}, run)
        builder = PointsBuilder()
        _add_points(sequences, _prefixes(meta), reading, builder)
        _compare_ends(sequences, meta, reading)
        reading.points = builder.build()
        kept = f"{len(reading.points)} numbers"
        reading.problems = [replace(problem, kept=problem.kept or kept) for problem in reading.problems]
        return reading


def _tree(folder: Path, reading: Reading) -> dict[Keys, Any]:
    """The paths and values in a database; those that are none become a Problem."""
    tree: dict[Keys, Any] = {}
    bad = 0
    for key, data in items(folder, reading.problems).items():
        keys = path_of(key)
        try:
            if keys is None:
                raise ValueError("no path")
            tree[keys] = value_of(data)
        except ValueError:
            bad += 1
    if bad:
        what = f"{bad} entries of a form that is not known"
        reading.problems.append(Problem(path=str(folder), what=what, lost="these entries"))
    return tree


def _below(above: Keys, tree: dict[Keys, Any]) -> dict[Keys, Any]:
    """The part of a tree that lies below a path, with paths from there on."""
    size = len(above)
    return {keys[size:]: value for keys, value in tree.items() if keys[:size] == above}


def _of_the_machine(name: str | int = "") -> bool:
    return str(name).startswith(_OF_THE_MACHINE)


def _prefixes(meta: dict[Keys, Any]) -> dict[str | int, str]:
    """What is put before the names of metrics, for each context: its subset, after other parts as ``name=value``."""
    contexts = _below(("contexts",), meta)
    found: dict[str | int, str] = {}
    for context in dict.fromkeys(keys[0] for keys in contexts if keys):
        parts = [
            (keys == ("subset",), f"{value}/" if keys == ("subset",) else f"{'.'.join(map(str, keys))}={value}/")
            for keys, value in _below((context,), contexts).items()
            if keys and not isinstance(value, (Container, bytes))
        ]
        found[context] = "".join(text for _, text in sorted(parts))
    return found


def _sequences(tree: dict[Keys, Any], run: str) -> Sequences:
    """The columns of each sequence, by context and name.

    Numbers are in ``v2``, at places that are a hash of the step; other sequences, and numbers of older versions, are at
    the place of their step.
    """
    found: Sequences = defaultdict(lambda: {column: {} for column in _COLUMNS})
    for above in (("seqs", "v2", "chunks", run), ("seqs", "chunks", run)):
        for keys, value in _below(above, tree).items():
            if len(keys) != 4 or keys[2] not in _COLUMNS or not isinstance(place := keys[3], int):
                continue
            columns = found[keys[:2]]
            columns[str(keys[2])][place] = value
            if above[1] != "v2":
                columns["step"][place] = place
    return found


def _add_points(sequences: Sequences, contexts: dict[str | int, str], reading: Reading, builder: PointsBuilder) -> None:
    """Adds the values in the order of their times, and the epoch of each step where all sequences agree on it."""
    rows: list[tuple[float, str, int, float]] = []
    epochs: dict[int, set[float]] = defaultdict(set)
    lost = 0
    for (context, name), columns in sequences.items():
        if _of_the_machine(name):
            reading.skipped[Skip.SYSTEM_METRICS] += len(columns["val"])
            continue
        tag = contexts.get(context, f"context {context}/") + str(name)
        for place, value in columns["val"].items():
            step, time, epoch = (columns[column].get(place) for column in ("step", "time", "epoch"))
            if isinstance(value, Container):
                reading.skipped[_OBJECTS.get(value.kind, Skip.MEDIA)] += 1
            elif not isinstance(value, (int, float)):
                reading.skipped[Skip.NOT_NUMERIC] += 1
            elif not isinstance(step, int):
                lost += 1
            else:
                rows.append((time if isinstance(time, float) else math.inf, tag, step, float(value)))
                if isinstance(epoch, (int, float)):
                    epochs[step].add(float(epoch))
        lost += len((columns["step"].keys() | columns["time"].keys()) - columns["val"].keys())
    if lost:
        what = f"{lost} entries of metrics without their value or step"
        reading.problems.append(Problem(path=reading.path, what=what, lost="these entries"))
    one = all(len(values) == 1 for values in epochs.values())
    if not one:
        reading.notes.append("the epochs that are tracked with the metrics differ at one step, and are not used")
    for time, tag, step, value in sorted(rows, key=lambda row: (row[0], row[2])):
        at = time if time < math.inf else math.nan
        if one and (epoch := epochs.pop(step, None)):
            builder.add("epoch", step, epoch.pop(), at)
        builder.add(tag, step, value, at)


def _compare_ends(sequences: Sequences, meta: dict[Keys, Any], reading: Reading) -> None:
    """A Problem where the values of a sequence do not reach the last step that the run says it tracked."""
    for keys, last in _below(("traces",), meta).items():
        if keys[2:] != ("last_step",) or not isinstance(last, int):
            continue
        steps = [step for step in sequences[keys[:2]]["step"].values() if isinstance(step, int)]
        if max(steps, default=-1) < last:
            ends = f"end at step {max(steps)}" if steps else "are missing"
            what = f"the values of {keys[1]} {ends}; the last that was tracked is of step {last}"
            reading.problems.append(Problem(path=reading.path, what=what, lost="the values after it"))
