"""Which files make a run: what a person would call one.

Every file that a reader claims is given a *home*, the folder of its run, and where several runs share a
folder a *key* that tells them apart:

- event files belong to their folder; sub-folders that the same process wrote (add_scalars, hparams) and
  sibling train/ and validation/ folders belong to the parent, their tags prefixed;
- everything in ``wandb/run-*`` or ``wandb/offline-run-*`` is one W&B run; alone in its folder it belongs to it;
- ``checkpoint-N/trainer_state.json`` belongs to the parent, the newest wins;
- event files in ``runs/`` beside a trainer_state.json are those of the same Hugging Face output folder;
- texts join the run whose numbers lie beside them; alone they are grouped by name, so that ``.out`` and
  ``.err``, the ranks of one job and the files of one Slurm job id are one run;
- a folder with the texts of one run, and one run below it, is that run (``train.log`` beside ``output/``).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.errors import NotFoundError
from postmortem.core.model import Problem
from postmortem.readers import READERS
from postmortem.readers._lines import looks_like_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.readers import Reader

HEAD = 4096
_SKIPPED_FOLDERS = {".git", "__pycache__", "node_modules", ".venv", "venv", "site-packages", ".ipynb_checkpoints", "latest-run"}
_SPLITS = {"train", "training", "val", "valid", "validation", "eval", "evaluation", "dev", "test"}
_WANDB_RUN = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-.+|(?:offline-)?run-.+")
_EVENT_FILE = re.compile(r"tfevents\.(?P<time>\d+)\.(?P<writer>.+?)(?:\.\d+)?(?:\.v2)?$")
_HPARAMS_FOLDER = re.compile(r"\d{9,}(?:\.\d+)?$")
_RANK = re.compile(r"[-_.]?(?:global_?)?(?:rank|worker|proc|task)[-_.]?(?P<rank>\d{1,5})(?!\d)", re.IGNORECASE)
_TORCHRUN = re.compile(r"attempt_\d+/(?P<rank>\d+)/std(?:out|err)\.log$")
_JOB = re.compile(r"(?<!\d)(?P<job>\d{4,10})(?:_(?P<array>\d+))?(?!\d)")
_STANDARD_TABLES = {"metrics", "results", "progress", "history", "log", "train", "val", "valid", "test", "training", "validation", "scalars"}
_TABLES = {"csv", "jsonl"}
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}


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
            claimed = _claim(root, problems, explicit=True)
            found = [RunFiles(root.name, root, [Part(root, claimed, stream=str(root))])] if claimed else []
        else:
            found = _below(root, problems)
        for run in found:
            run.parts = [p for p in run.parts if p.path.resolve() not in seen]
            seen.update(p.path.resolve() for p in run.parts)
            if run.parts:
                runs.append(run)
    return _unique_names(runs), problems


def _below(root: Path, problems: list[Problem]) -> list[RunFiles]:
    claimed = [_Claimed(path, found, path.parent) for path in _files(root, problems) if (found := _claim(path, problems))]
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
    _join_the_only_run(claimed)
    groups: dict[tuple[Path, str], list[_Claimed]] = defaultdict(list)
    for c in claimed:
        groups[c.home, c.key].append(c)
    return [_run_files(home, key, members, root) for (home, key), members in sorted(groups.items(), key=lambda g: (str(g[0][0]), g[0][1]))]


def _files(root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Regular files below root in a stable order; links to folders are followed once, after everything real.

    What is named like a log and cannot be read (a pipe, a device, a link that leads nowhere) becomes a Problem.
    """
    visited: set[tuple[int, int]] = set()
    pending = deque([str(root)])
    links: deque[str] = deque()
    while pending or links:
        top = (pending or links).popleft()
        try:
            status = os.stat(top)
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(top), key=lambda e: e.name)
        except OSError as error:
            problems.append(Problem(path=top, what=f"cannot be listed: {error.strerror}", lost="the folder"))
            continue
        for entry in entries:
            try:
                mode = entry.stat().st_mode
            except OSError as error:  # a link that leads nowhere or in a circle, or a file that is gone by now
                mode, why = 0, f"cannot be opened: {error.strerror}"
            else:
                why = f"is {kind_of(mode)}, not a file"
            if stat.S_ISDIR(mode):
                if entry.name not in _SKIPPED_FOLDERS and not entry.name.startswith("."):
                    (links if entry.is_symlink() else pending).append(entry.path)
            elif stat.S_ISREG(mode):
                yield Path(entry.path)
            elif _looks_like_a_log(Path(entry.path)) and not _of_wandb_itself(Path(entry.path)):
                problems.append(Problem(path=entry.path, what=why, lost="the file"))


def kind_of(mode: int) -> str:
    """What a path is that is neither file nor folder, in words."""
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    return next((words for is_one, words in kinds if is_one(mode)), "something else")


def _claim(path: Path, problems: list[Problem], *, explicit: bool = False) -> type[Reader] | None:
    if _of_wandb_itself(path):
        return None
    if path.name == "requirements.txt":
        return None  # versions, not numbers
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        if explicit or _looks_like_a_log(path):
            problems.append(Problem(path=str(path), what=f"cannot be opened: {error.strerror}", lost="the file"))
        return None
    found = next((r for r in READERS if r.claims(path, head)), None)
    if found is None and (explicit or (head and _looks_like_a_log(path) and not looks_like_text(head))):
        problems.append(Problem(path=str(path), what=_why_unknown(head), lost="the file"))
    return found


def _why_unknown(head: bytes) -> str:
    if not head:
        return "the file is empty"
    if not head.strip(b"\0"):
        return "nothing but zero bytes, as a crashed machine leaves them"
    packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    return f"packed with {packed}: unpack it first" if packed else "no reader knows this kind of file"


def _of_wandb_itself(path: Path) -> bool:
    """Whether `path` is W&B's own log (about its upload, not the training), or a link to it."""
    inside_run = path.parent.name == "logs" and _WANDB_RUN.fullmatch(path.parent.parent.name)
    return path.name.startswith("debug") and bool(inside_run or path.parent.name == "wandb")


def _looks_like_a_log(path: Path) -> bool:
    return "tfevents" in path.name or path.suffix in {".wandb", ".out", ".err", ".log", ".csv", ".jsonl"} or path.name == "trainer_state.json"


def _by_home(claimed: list[_Claimed]) -> dict[Path, list[_Claimed]]:
    homes: dict[Path, list[_Claimed]] = defaultdict(list)
    for c in claimed:
        homes[c.home].append(c)
    return homes


def _find_home(c: _Claimed, events: dict[Path, Path], splits: dict[Path, set[Path]], root: Path) -> None:
    folder = c.path.parent
    inside = (folder, *folder.parents)
    wandb_run = next((p for p in inside if p.parent.name == "wandb" and _WANDB_RUN.fullmatch(p.name)), None)
    torchrun = _TORCHRUN.search(c.path.as_posix())
    if wandb_run is not None:
        c.home = wandb_run
    elif c.kind == "tensorboard":
        _home_of_events(c, events, splits, root)
    elif c.kind == "trainer_state" and re.fullmatch(r"checkpoint-\d+", folder.name):
        c.home = folder.parent
    elif torchrun:
        c.home, c.rank = folder.parent.parent, int(torchrun["rank"])
    elif folder != root and (m := re.fullmatch(r"rank[-_]?(\d+)", folder.name)):
        c.home, c.rank = folder.parent, int(m[1])


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
        match = re.fullmatch(r"checkpoint-(\d+)", c.path.parent.name)
        return int(match[1]) if match else 2**62  # the run's own file is written last

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
            if folder == root or not joins or (texts_only and all(c.kind == "text" for c in beside)):
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
            if len(set(keys.values())) > 1 and not the_table:
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
