"""Which files make a run: what a person would call one.

Every file that a reader claims is given a *home*, the folder of its run, and where several runs share a
folder a *key* that tells them apart:

- event files belong to their folder; sub-folders that the same process wrote (add_scalars, hparams) and
  sibling train/ and validation/ folders belong to the parent, their tags prefixed;
- everything in ``wandb/run-*`` or ``wandb/offline-run-*`` is one W&B run; alone in its folder it belongs to it;
- ``checkpoint-N/trainer_state.json`` (or ``step-N/``, ``checkpoints/N/``) belongs to the parent, the newest wins;
- event files in ``runs/`` beside a trainer_state.json are those of the same Hugging Face output folder;
- texts join the run whose numbers lie beside them; alone they are grouped by name, so that ``.out`` and
  ``.err``, the ranks of one job and the files of one Slurm job id are one run;
- a text named like the folder beside it is the output of the one run in there (``exp7.log`` beside ``exp7/``);
- a folder with the texts of one run, and one run below it, is that run (``train.log`` beside ``output/``).
"""

from __future__ import annotations

import errno
import re
import stat
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from postmortem.checkpoints.find import names_a_checkpoint
from postmortem.core.errors import NotFoundError
from postmortem.runs.walk import WANDB_RUN, claim, files_below, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from postmortem.core.model import Problem
    from postmortem.readers import Reader

_SPLITS = {"train", "training", "val", "valid", "validation", "eval", "evaluation", "dev", "test"}
_EVENT_FILE = re.compile(r"tfevents\.(?P<time>\d+)\.(?P<writer>.+?)(?:\.\d+)?(?:\.v2)?$")
_HPARAMS_FOLDER = re.compile(r"\d{9,}(?:\.\d+)?$")
_RANK = re.compile(r"[-_.]?(?:global_?)?(?:rank|worker|proc|task)[-_.]?(?P<rank>\d{1,5})(?!\d)", re.IGNORECASE)
_TORCHRUN = re.compile(r"attempt_\d+/(?P<rank>\d+)/std(?:out|err)\.log$")
_JOB = re.compile(r"(?<!\d)(?P<job>\d{4,10})(?:_(?P<array>\d+))?(?!\d)")
_STANDARD_TABLES = {"metrics", "results", "progress", "history", "log", "train", "val", "valid", "test", "training", "validation", "scalars"}
_TABLES = {"csv", "jsonl"}
_NAMELESS = {"", "nohup", "output", "console"}  # what a shell or a notebook calls any output


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a run: its reader, a prefix for its tags, its rank where the name tells, its stream."""

    path: Path
    reader: type[Reader]
    prefix: str = ""
    rank: int = -1
    stream: str = ""


@dataclass(slots=True)
class RunFiles:
    """The files of one run, in the order in which they were written."""

    name: str
    path: Path
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class _Claimed:
    path: Path
    reader: type[Reader]
    home: Path
    key: str = ""
    prefix: str = ""
    rank: int = -1

    @property
    def kind(self) -> str:
        return self.reader.kind


def discover(paths: Iterable[Path]) -> tuple[list[RunFiles], list[Problem]]:
    """All runs below `paths` (files or folders), in order of their names, and what could not be looked into.

    NotFoundError where a path does not exist.
    """
    runs: list[RunFiles] = []
    problems: list[Problem] = []
    seen: set[Path] = set()
    for root in paths:
        try:
            mode = root.stat().st_mode
        except OSError as error:
            raise NotFoundError(f"{root}: {'no such file or folder' if error.errno == errno.ENOENT else error.strerror}") from error
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise NotFoundError(f"{root}: is {kind_of(mode)}, not a file or folder; write it to a file first")
        if stat.S_ISREG(mode):
            reader = claim(root, problems, explicit=True)
            found = [RunFiles(root.name, root, [Part(root, reader, stream=str(root))])] if reader else []
        else:
            found = _below(root, problems)
        for run in found:
            run.parts = [p for p in run.parts if p.path.resolve() not in seen]
            seen.update(p.path.resolve() for p in run.parts)
            if run.parts:
                runs.append(run)
    return _unique_names(runs), problems


def _below(root: Path, problems: list[Problem]) -> list[RunFiles]:
    claimed = [_Claimed(path, found, path.parent) for path in files_below(root, problems) if (found := claim(path, problems))]
    events = {c.path.parent: c.path for c in claimed if c.kind == "tensorboard"}
    splits: dict[Path, set[Path]] = defaultdict(set)
    for folder in events:
        if folder.name.lower() in _SPLITS:
            splits[folder.parent].add(folder)
    for c in claimed:
        _find_home(c, events, splits, root)
    claimed = _newest_trainer_state(claimed)
    _join_lightning_loggers(claimed)
    _collapse(claimed, root)
    _join_trainer_folder(claimed)
    _group_loose_files(claimed)
    _join_namesakes(claimed)
    _join_the_only_run(claimed)
    groups: dict[tuple[Path, str], list[_Claimed]] = defaultdict(list)
    for c in claimed:
        groups[c.home, c.key].append(c)
    return [_run_files(home, key, members, root) for (home, key), members in sorted(groups.items(), key=lambda g: (str(g[0][0]), g[0][1]))]


def _by_home(claimed: list[_Claimed]) -> dict[Path, list[_Claimed]]:
    homes: dict[Path, list[_Claimed]] = defaultdict(list)
    for c in claimed:
        homes[c.home].append(c)
    return homes


def _find_home(c: _Claimed, events: dict[Path, Path], splits: dict[Path, set[Path]], root: Path) -> None:
    folder = c.path.parent
    inside = (folder, *folder.parents)
    wandb_run = next((p for p in inside if p.parent.name == "wandb" and WANDB_RUN.fullmatch(p.name)), None)
    torchrun = _TORCHRUN.search(c.path.as_posix())
    if wandb_run is not None:
        c.home = wandb_run
    elif c.kind == "tensorboard":
        _home_of_events(c, events, splits, root)
    elif c.kind == "trainer_state" and folder != root and names_a_checkpoint(folder):
        c.home = folder.parent
    elif torchrun:
        c.home, c.rank = folder.parent.parent, int(torchrun["rank"])
    elif folder != root and (m := re.fullmatch(r"rank[-_]?(\d+)", folder.name)):
        c.home, c.rank = folder.parent, int(m[1])
    if not c.home.is_relative_to(root):  # what lies above was not asked for
        c.home = root


def _home_of_events(c: _Claimed, events: dict[Path, Path], splits: dict[Path, set[Path]], root: Path) -> None:
    folder = c.path.parent
    if folder == root:
        return
    parent_events = events.get(folder.parent)
    if parent_events is not None and _writer(parent_events) == _writer(c.path):
        c.home = folder.parent
        c.prefix = "" if _HPARAMS_FOLDER.fullmatch(folder.name) else folder.name
    elif folder.name.lower() in _SPLITS and splits[folder.parent] - {folder}:
        c.home, c.prefix = folder.parent, folder.name


def _writer(path: Path) -> str | None:
    """host and process that wrote an event file, from its name."""
    match = _EVENT_FILE.search(path.name)
    return match["writer"] if match else None


def _newest_trainer_state(claimed: list[_Claimed]) -> list[_Claimed]:
    def age(c: _Claimed) -> int:
        folder = c.path.parent
        number = re.search(r"\d{1,18}$", folder.name)
        return (int(number[0]) if number else 0) if names_a_checkpoint(folder) else 2**62  # the run's own file is written last

    newest: dict[Path, _Claimed] = {}
    for c in claimed:
        if c.kind == "trainer_state" and (c.home not in newest or age(c) > age(newest[c.home])):
            newest[c.home] = c
    return [c for c in claimed if c.kind != "trainer_state" or newest[c.home] is c]


def _collapse(claimed: list[_Claimed], root: Path) -> None:
    """A folder that holds one W&B run, one Lightning version or one folder of texts is the run itself."""
    for container in ("wandb", "lightning_logs", "logs", "log", "slurm", "vis_data"):
        members = _by_home(claimed)
        children: dict[Path, set[Path]] = defaultdict(set)
        for home in members:
            if container in ("wandb", "lightning_logs", "vis_data") and home.parent.name == container:
                children[home.parent].add(home)
            elif home.name == container:
                children[home].add(home)
        for folder, homes in children.items():
            owner = folder.parent
            inside = [c for home in homes for c in members.get(home, ())]
            beside = members.get(owner, [])
            texts_only = all(c.kind == "text" for c in inside)
            joins = bool(beside) if texts_only else len(homes) == 1
            if not owner.is_relative_to(root) or not joins or (texts_only and all(c.kind == "text" for c in beside)):
                continue
            for c in inside:
                c.home = owner
            for home in homes:
                members.pop(home, None)
            members[owner] = [*beside, *inside]


def _group_loose_files(claimed: list[_Claimed]) -> None:
    """Tells apart the runs of a folder that holds only texts, or only tables; ranks from file names."""
    for c in claimed:
        if c.rank < 0 and c.kind in {"text", *_TABLES} and (m := _RANK.search(c.path.stem)):
            c.rank = int(m["rank"])
    for members in _by_home(claimed).values():
        if all(c.kind in {"text", *_TABLES} for c in members):
            keys = {c.path: _key(c) for c in members}
            by_job: dict[str, str] = {}
            for c in members:  # one Slurm job id ties differently named files together
                job = _job(c.path.name)
                if job:
                    keys[c.path] = by_job.setdefault(job, keys[c.path])
            the_table = any(c.kind in _TABLES and not keys[c.path] for c in members)  # metrics.csv: the texts beside it are its own
            names = set(keys.values())
            if len(names) > 1 and not the_table and not (len(names - _NAMELESS) == 1 and all(c.kind == "text" for c in members)):
                for c in members:
                    c.key = keys[c.path]


def _join_lightning_loggers(claimed: list[_Claimed]) -> None:
    """Two loggers of one Lightning trainer take two versions: a table in one, event files and the same hyperparameters in the next."""
    kinds: dict[Path, set[str]] = defaultdict(set)
    for c in claimed:
        if c.home.parent.name == "lightning_logs" and re.fullmatch(r"version_\d+", c.home.name):
            kinds[c.home].add(c.kind)
    joined: dict[Path, Path] = {}
    for home in sorted(kinds, key=lambda h: (h.parent, int(h.name[8:]))):
        after = home.with_name(f"version_{int(home.name[8:]) + 1}")
        if home not in joined and sorted([*kinds[home], *kinds.get(after, ())]) == ["csv", "tensorboard"] and _hparams(home) == _hparams(after):
            joined[after] = home
    for c in claimed:
        c.home = joined.get(c.home, c.home)


def _hparams(home: Path) -> bytes | None:
    try:
        return (home / "hparams.yaml").read_bytes()
    except OSError:
        return None


def _join_trainer_folder(claimed: list[_Claimed]) -> None:
    """Every start of a Hugging Face Trainer writes event files to a folder of its own: ``output/runs/DATE_HOST/``."""
    outputs = {c.home for c in claimed if c.kind == "trainer_state"}
    for c in claimed:
        if c.kind == "tensorboard" and c.home.parent.name == "runs" and c.home.parent.parent in outputs:
            c.home = c.home.parent.parent


def _join_namesakes(claimed: list[_Claimed]) -> None:
    """``exp7.log`` beside ``exp7/``, in which one run lies at any depth, is that run's output."""
    folders = {c.path.parent / _key(c) for c in claimed if c.kind == "text" and c.home == c.path.parent and _key(c)}
    below: dict[Path, list[_Claimed]] = defaultdict(list)
    for c in claimed:
        for folder in (c.home, *c.home.parents):
            if folder in folders:
                below[folder].append(c)
    alone = {f for f, cs in below.items() if len({(c.home, c.key) for c in cs}) == 1 and any(c.kind != "text" for c in cs)}
    texts = [(c, c.path.parent / _key(c)) for c in claimed if c.kind == "text" and c.home == c.path.parent]
    for c, folder in [*((c, f) for f in alone for c in below[f]), *((c, f) for c, f in texts if f in alone)]:
        c.home, c.key = folder, ""


def _join_the_only_run(claimed: list[_Claimed]) -> None:
    """Texts of one run that lie above the only other run of their folder are that run's output."""
    texts = {home: members for home, members in _by_home(claimed).items() if all(c.kind == "text" for c in members)}
    under: dict[Path, list[_Claimed]] = defaultdict(list)
    for c in claimed:
        for folder in c.home.parents:
            if folder in texts:
                under[folder].append(c)
    for folder in sorted(under, key=lambda home: len(home.parts), reverse=True):
        here, below = texts[folder], under[folder]
        one_each = len({c.key for c in here}) == 1 == len({(c.home, c.key) for c in below})
        of_a_run = any(c.kind != "text" or _TORCHRUN.search(c.path.as_posix()) for c in below)
        if one_each and of_a_run:
            for c in (*here, *below):
                c.home, c.key = folder, ""


def _key(c: _Claimed) -> str:
    stem = re.sub(r"(?:\.(?:log|out|err|txt|csv|tsv|jsonl?|o|e))+$", "", c.path.name, flags=re.IGNORECASE)
    stem = _RANK.sub("", stem)
    stem = re.sub(r"(?:^|[-_.])(?:std)?(?:out|err(?:or)?|log)$", "", stem, flags=re.IGNORECASE)
    if c.kind in _TABLES and stem.lower() in _STANDARD_TABLES:
        return ""
    return stem


def _job(name: str) -> str | None:
    """The Slurm job id in a file name, with its array index; dates are none."""
    for match in _JOB.finditer(name):
        job = match["job"]
        if not (len(job) == 8 and job.startswith(("19", "20"))) and not (len(job) == 4 and job.startswith(("19", "20"))):
            return match[0] if match["array"] else job
    return None


def _run_files(home: Path, key: str, members: list[_Claimed], root: Path) -> RunFiles:
    relative = "" if home == root else home.relative_to(root).as_posix()
    name = "/".join(p for p in (relative, key) if p) or home.resolve().name
    parts = []
    for c in sorted(members, key=_written):
        if c.kind == "tensorboard":
            stream = str(c.path.parent)
        elif c.kind == "text" and _job(c.path.name):  # the files of a requeued job continue each other
            stream = f"{c.home}/*{c.path.suffix} {c.rank}"
        else:
            stream = str(c.path)
        parts.append(Part(c.path, c.reader, c.prefix, c.rank, stream))
    return RunFiles(name, members[0].path if key and len(members) == 1 else home, parts)


def _written(c: _Claimed) -> tuple[int, int, str]:
    """Sorts the files of a run by the time or the job id in their names; tables and binary sources first."""
    event = _EVENT_FILE.search(c.path.name)
    stamp = event["time"] if event else _job(c.path.name) or "0"
    return (c.kind == "text", int(stamp.split("_")[0]), str(c.path))


def _unique_names(runs: list[RunFiles]) -> list[RunFiles]:
    names = Counter(r.name for r in runs)
    return [replace(r, name=str(r.path)) if names[r.name] > 1 else r for r in runs]
