"""The configuration of a run: what its logs contain, and the settings file that the training saved next to them.

This is the only place that looks for such a file; a scan and a replay use the same answer (`Run.config`).
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import folders_above, home_of, names_a_checkpoint
from postmortem.core.model import Problem
from postmortem.runs.settings_losses import MOST_LEVELS, Losses, NotUnderstood, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from postmortem.core.run import Run
    from postmortem.runs.claimed import RunFiles
    from postmortem.runs.names_in import NamesIn

NAMES = (
    "config.json",
    "hparams.json",
    "args.json",
    "hparams.yaml",  # Lightning's loggers
    "config.yaml",  # W&B, detectron2, many training scripts
    "config.yml",
    "args.yaml",  # timm, Ultralytics
    ".hydra/config.yaml",  # Hydra's composed configuration
)
"""Names of settings files, relative to a folder of the run; the first that holds settings counts."""
MOST_BYTES = 1 << 20


def config_of_run(
    logged: dict[str, Any],
    files: RunFiles,
    roots: Sequence[Path],
    shared: Collection[Path],
    problems: list[Problem],
    notes: list[str],
    there: NamesIn | None = None,
) -> dict[str, Any]:
    """The configuration of a run: what its logs contain (`logged`), overridden by the settings file next to them.

    The file is searched for in the folder of the run, in those of its logs, and in the folders above them up to one
    of `roots`, as long as these are not `shared` with other runs. What cannot be understood is added to `problems`,
    and settings files that are not used, because another one is, to `notes`. `there` are the names in the folders.
    """
    own = files.path if files.path.is_dir() else files.path.parent
    of_logs = (part.path.parent for part in files.parts)
    inside = [folder for folder in of_logs if not names_a_checkpoint(folder)]  # there it is the model's, not the run's
    return {**logged, **find_config([own, *inside, *folders_above(own, roots, shared)], problems, notes, there)}


def config_for_replay(run: Run | None, target: Path, problems: list[Problem]) -> dict[str, Any]:
    """The configuration for a replay of `target`: that of its run, over the settings file saved with a checkpoint."""
    folder = target if target.is_dir() else target.parent
    beside = find_config([folder, home_of(folder) if run is not None else folder.parent], problems)
    return {**beside, **(run.config if run is not None else {})}


def find_config(
    folders: Iterable[Path], problems: list[Problem], notes: list[str] | None = None, there: NamesIn | None = None
) -> dict[str, Any]:
    """The settings of the first file in `folders` that has one of `NAMES` and holds any; {} if there is none.

    If `notes` is given, the later files that hold settings as well are named there. Their problems do not count.
    """
    paths = (
        os.path.join(folder, name)
        for folder in dict.fromkeys(map(str, folders))
        for name in NAMES
        if there is None or there.may_hold(folder, name.partition("/")[0])
    )
    for path in paths:
        if found := _settings_in(path, problems):
            unused = [str(Path(other)) for other in paths if _settings_in(other, [])] if notes is not None else []
            if notes is not None and unused:
                notes.append(f"the configuration is that of {Path(path)}; not used: {listed(unused)}")
            return found
    return {}


def _settings_in(name: str, problems: list[Problem]) -> dict[str, Any]:
    try:
        status = os.stat(name)
    except OSError:
        return {}  # not there
    path = Path(name)
    if not stat.S_ISREG(status.st_mode):
        return {}
    try:
        if status.st_size > MOST_BYTES:
            raise NotUnderstood(f"is not read as a configuration: {status.st_size} bytes, more than {MOST_BYTES}")
        found, losses = (_from_json if path.suffix == ".json" else _from_yaml)(path.read_bytes())
        if found is not None and not isinstance(found, dict):
            raise NotUnderstood("is not a configuration: it contains no names with values")
    except (OSError, NotUnderstood) as error:
        what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        problems.append(Problem(path=str(path), what=what, lost="the run's configuration", kind="settings"))
        return {}
    problems += losses.problems(str(path))
    return found or {}


def _from_yaml(data: bytes) -> tuple[Any, Losses]:
    from postmortem.runs.yaml_settings import from_yaml

    return from_yaml(data)


def _from_json(data: bytes) -> tuple[Any, Losses]:
    losses = Losses()

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            losses.repeated += [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        return found

    try:
        found = json.loads(data.decode("utf-8-sig"), object_pairs_hook=mapping)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"is not JSON: {error}") from error
    level = [found]
    for _ in range(MOST_LEVELS + 1):
        containers = (held for held in level if isinstance(held, (dict, list)))
        level = [inner for held in containers for inner in (held.values() if isinstance(held, dict) else held)]
    if level:
        raise NotUnderstood(f"is not read as a configuration: nested more than {MOST_LEVELS} levels deep")
    return found, losses
