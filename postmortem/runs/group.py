"""Groups files into runs."""

from __future__ import annotations

import errno
import re
import stat
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.find import find_checkpoints, home_of, names_a_checkpoint
from postmortem.core.errors import NotFoundError
from postmortem.core.progress import progressed
from postmortem.readers import Reader
from postmortem.runs.claimed import ClaimedFile, Part, RunFiles
from postmortem.runs.event_folders import of_one_call
from postmortem.runs.file_names import (
    event_writer,
    order_of_writing,
    place_in_log,
    rank_in_name,
    rank_of_folder,
    slurm_job,
    torchrun_rank,
    whole_log,
)
from postmortem.runs.loggers import FOLDERS_OF_EVENTS, NAMELESS, one_log_and_its_tables, two_loggers
from postmortem.runs.metric_files import joined_by_metric
from postmortem.runs.names_in import lying_in
from postmortem.runs.own_histories import is_history, join_histories, name_of_history
from postmortem.runs.requeued import requeued
from postmortem.runs.splits import SPLITS, name_splits, place_split_tables, split_tables
from postmortem.runs.walk import WANDB_RUN, claim, files_below, guarded, kind_of, real_path, runs_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.core.model import Problem

_HPARAMS_FOLDER = re.compile(r"\d{9,}(?:\.\d+)?$")
_ATTEMPT = re.compile(r"(?P<stem>.*[A-Za-z])[-_.]?(?:attempt|try|part|restart|resume)?[-_.]?(?P<number>\d{1,2})")
_FOLDERS_OF_RUNS = ("wandb", "lightning_logs", "vis_data")
_REPORTED = 64
"""Files that were looked at between two reports of progress."""
_FOLDERS_OF_LOGS = ("logs", "log", "slurm")


def discover(paths: Iterable[Path]) -> tuple[list[RunFiles], list[Problem]]:
    """All runs below `paths` (files or folders), in order of their names, and what could not be inspected.

    NotFoundError if a path does not exist.
    """
    runs: list[RunFiles] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    folders: dict[str, str] = {}
    for root in paths:
        root, only = _file_and_run(root)
        try:
            mode = root.stat().st_mode
        except OSError as error:
            why = "no such file or folder" if error.errno == errno.ENOENT else error.strerror
            raise NotFoundError(f"{root}: {why}") from error
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise NotFoundError(f"{root}: is {kind_of(mode)}, not a file or folder; write it to a file first")
        if stat.S_ISREG(mode):
            reader = claim(root, problems, explicit=True)
            found = _runs_of_file(root, reader, only, problems) if reader else []
        else:
            found = Grouping(root, list(_claimed_below(root, problems)), problems).runs()
        for run in found:
            real = [(part, real_path(part.path, folders)) for part in run.parts]
            run.parts = [part for part, path in real if path not in seen]
            seen.update(path for _, path in real)
            if run.parts:
                runs.append(run)
    names = Counter(run.name for run in runs)
    return [replace(run, name=str(run.path)) if names[run.name] > 1 else run for run in runs], problems


def _file_and_run(path: Path) -> tuple[Path, Path | None]:
    """The path itself; of one below a file, ``mlflow.db/RUN_ID``, that file, and the path as that of a run in it."""
    return (path.parent, path) if path.parent.is_file() else (path, None)


def _runs_of_file(file: Path, reader: type[Reader], only: Path | None, problems: list[Problem]) -> list[RunFiles]:
    """The run of a file, or those in it; `only` is the path of the one in it that was asked for."""
    paths = [path for path in runs_in(file, reader, problems) if only in (None, path)]
    if not paths:
        raise NotFoundError(f"{only}: no such run in {file}")
    return [RunFiles(path.name, path, [Part(path, reader, stream=str(path))]) for path in paths]


def _claimed_below(root: Path, problems: list[Problem]) -> Iterator[ClaimedFile]:
    for count, path in enumerate(files_below(root, problems), 1):
        if count % _REPORTED == 0:
            progressed(str(path.parent), count)
        reader = claim(path, problems)
        if reader is not None:
            for run in runs_in(path, reader, problems):
                yield ClaimedFile(run, reader, run.parent)


class Grouping:
    """Sorts the files that readers claim below `root` into runs.

    Each rule of `RULES` moves files to the home and key of their run, in this order: first by the path of each file
    alone, then by the files of its folder, then by the folders above and below.
    """

    RULES = (
        "place_by_path",
        "place_event_files",
        "keep_newest_snapshot",
        "join_loggers",
        "join_inner_folders",
        "join_trainer_events",
        "separate_loose_files",
        "join_namesakes",
        "join_the_only_run",
    )

    def __init__(self, root: Path, files: list[ClaimedFile], problems: list[Problem]) -> None:
        self.root = root
        self.histories = [file for file in files if is_history(file)]
        self.files = [file for file in files if file.content != "monitor" and not is_history(file)]
        self.monitors = [file for file in files if file.content == "monitor"]
        self.problems = problems
        self._words: dict[Path, frozenset[bytes]] = {}  # of the first lines of tables

    def runs(self) -> list[RunFiles]:
        """The runs in order of their names, after all rules."""
        for rule in self.RULES:
            getattr(self, rule)()
        name_splits(self.files, self._words)
        join_histories(self.histories, self.files)
        self.files = [*self.files, *self.histories]
        self._add_monitors()
        groups: dict[tuple[Path, str], list[ClaimedFile]] = defaultdict(list)
        for file in self.files:
            groups[file.run].append(file)
        self._homes_in = lying_in({home for home, _ in groups})  # in each folder and below it
        in_order = sorted(groups.items(), key=lambda group: (str(group[0][0]), group[0][1]))
        return [self._run(home, key, members) for (home, key), members in in_order]

    def place_by_path(self) -> None:
        """A W&B run folder is a run, also out of ``wandb/``; else the reader may name the home; ranks have their own.

        torchrun's ``attempt_0/3/stderr.log`` and ``rank_3/train.log`` belong to the folder of all ranks.
        """
        logs = Counter(file.path.parent for file in self.files if file.path.suffix == ".wandb")
        for file in self.files:
            folder = file.path.parent
            inside = (folder, *folder.parents) if {"wandb", "files"} & {*folder.parts} else ()
            wandb_run = next((p for p in inside if p.parent.name == "wandb" and WANDB_RUN.fullmatch(p.name)), None)
            wandb_run = wandb_run or next((p.parent for p in inside if p.name == "files" and logs[p.parent] == 1), None)
            home = wandb_run or self._home(file)
            if home is not None:
                file.placed = True
                self._move(file, home)
            elif file.content == "events":
                continue
            elif (rank := torchrun_rank(file.path)) >= 0:
                file.rank = rank
                self._move(file, folder.parent.parent)
            elif folder != self.root and (rank := rank_of_folder(folder)) >= 0:
                file.rank = rank
                self._move(file, folder.parent)

    def place_event_files(self) -> None:
        """Sub-folders that the same process wrote (add_scalars, hparams) belong to their parent, as do sibling splits.

        The name of such a folder, ``train/`` beside ``validation/``, becomes the prefix of its tags, also of tables.
        """
        events = [file for file in self.files if file.content == "events"]
        newest = {file.path.parent: file.path for file in events}
        place_split_tables(self.files, self.root, self._words)
        splits = Counter(folder.parent for folder in newest if folder.name.lower() in SPLITS)
        of_add_scalars = of_one_call(newest)
        for file in events:
            folder = file.path.parent
            if folder == self.root or file.placed:
                continue
            above = newest.get(folder.parent)
            if above is not None and event_writer(above) == event_writer(file.path):
                file.prefix = "" if _HPARAMS_FOLDER.fullmatch(folder.name) else folder.name
                self._move(file, folder.parent)
            elif folder in of_add_scalars or (folder.name.lower() in SPLITS and splits[folder.parent] > 1):
                file.prefix = folder.name
                self._move(file, folder.parent)

    def keep_newest_snapshot(self) -> None:
        """Of the snapshots of a run, as in ``checkpoint-N/``, only the newest is read: it holds those before."""
        newest: dict[Path, ClaimedFile] = {}
        for file in self.files:
            if file.content == "snapshot" and (file.home not in newest or _age(file) > _age(newest[file.home])):
                newest[file.home] = file
        self.files = [f for f in self.files if f.content != "snapshot" or newest[f.home] is f]

    def join_loggers(self) -> None:
        """Two loggers of one training write to two folders."""
        contents: dict[Path, set[str]] = defaultdict(set)
        for file in self.files:
            contents[file.home].add(file.content)
        joined = two_loggers(contents, self.root)
        for file in self.files:
            file.home = joined.get(file.home, file.home)

    def join_inner_folders(self) -> None:
        """A folder that holds one W&B run, one Lightning version or one folder of texts is the run itself. A folder
        called ``log`` that holds the checkpoints of a Trainer is a run of its own."""
        for container in (*_FOLDERS_OF_RUNS, *_FOLDERS_OF_LOGS):
            members = self._by_home()
            inner: dict[Path, set[Path]] = defaultdict(set)
            for home in members:
                if container in _FOLDERS_OF_RUNS and home.parent.name == container:
                    inner[home.parent].add(home)
                elif home.name == container:
                    inner[home].add(home)
            for folder, homes in inner.items():
                owner = folder.parent
                inside = [file for home in homes for file in members.get(home, ())]
                beside = members.get(owner, [])
                own = container in _FOLDERS_OF_LOGS and any(file.content == "snapshot" for file in inside)
                if all(file.is_output for file in inside):
                    joins = not all(file.is_output for file in beside)
                else:
                    joins = len(homes) == 1
                if joins and not own and owner.is_relative_to(self.root):
                    for file in inside:
                        file.home = owner
                    for home in homes:
                        members.pop(home, None)
                    members[owner] = [*beside, *inside]

    def join_trainer_events(self) -> None:
        """Every start of a Hugging Face Trainer writes event files to its own folder: ``output/runs/DATE_HOST/``."""
        outputs = {file.home for file in self.files if file.content == "snapshot"}
        for file in self.files:
            runs = file.home.parent
            if file.content == "events" and runs.name == "runs" and runs.parent in outputs:
                file.home = runs.parent

    def separate_loose_files(self) -> None:
        """Texts alone, or tables, are told apart by name; ``.out`` and ``.err``, ranks and a job are one run."""
        loose = [file for file in self.files if file.content in ("output", "table")]
        for file in loose:
            if file.rank < 0:
                file.rank = rank_in_name(file.path)
        for members in self._by_home().values():
            if all(file.content in ("output", "table") for file in members):
                self._separate(members)

    def _separate(self, members: list[ClaimedFile]) -> None:
        """Gives the texts and tables of one folder their keys, unless they are one run."""
        keys = {file.path: file.name_of_run for file in members}
        by_job: dict[str, str] = {}
        for file in members:
            if job := slurm_job(file.path):
                keys[file.path] = by_job.setdefault(job, keys[file.path])
        self._join_attempts(members, keys)
        self._join_requeued(members, keys)
        for group in split_tables((f.path for f in members if f.content == "table"), self._words):
            keys.update(dict.fromkeys(group, min(keys[path] for path in group)))
        keys.update(joined_by_metric(members, keys))
        names = set(keys.values())
        if any(file.content == "table" and not keys[file.path] for file in members):
            return  # metrics.csv: the texts beside it are its own
        if len(names - NAMELESS) == 1 and all(file.is_output for file in members):
            return  # nohup.out beside the one log with a name
        if one_log_and_its_tables(members, keys):
            return
        if len(names) > 1:
            for file in members:
                file.key = keys[file.path]

    def _join_attempts(self, members: list[ClaimedFile], keys: dict[Path, str]) -> None:
        """``train-1.out`` and ``train-2.out`` are the starts of one run if the folder holds one set of checkpoints."""
        numbered = [(file, found) for file in members if (found := _ATTEMPT.fullmatch(keys[file.path])) is not None]
        stems = {found["stem"] for _, found in numbered}
        starts = {int(found["number"]) for _, found in numbered}
        in_a_row = len(starts) > 1 and starts == set(range(min(starts), max(starts) + 1)) and min(starts) <= 1
        others = {keys[file.path] for file in members} - {found[0] for _, found in numbered} - stems - NAMELESS
        if len(stems) != 1 or not in_a_row or others or not all(file.is_output for file, _ in numbered):
            return
        if find_checkpoints(members[0].home):
            for file, found in numbered:
                file.attempt, keys[file.path] = int(found["number"]), found["stem"]

    def _join_requeued(self, members: list[ClaimedFile], keys: dict[Path, str]) -> None:
        """``slurm-12_0.out`` and ``slurm-12_1.out`` are one run if the second goes on where the first was preempted."""
        for texts in requeued([file.path for file in members if file.is_output]):
            first = texts[0]
            for file in members:
                if file.path in texts:
                    file.attempt, keys[file.path] = texts.index(file.path), keys[first]

    def join_namesakes(self) -> None:
        """``exp7.log`` beside ``exp7/``, in which one run lies at any depth, is that run's output."""
        texts: dict[Path, list[ClaimedFile]] = defaultdict(list)
        for file in self.files:
            if file.is_output and file.home == file.path.parent and (name := file.name_of_run):
                texts[file.home / name].append(file)
        below: dict[Path, list[ClaimedFile]] = defaultdict(list)
        for file in self.files:
            for folder in (file.home, *file.home.parents):
                if folder in texts:
                    below[folder].append(file)
        one_run = [
            folder
            for folder, files in below.items()
            if len({f.run for f in files}) == 1 and not all(f.is_output for f in files)
        ]
        for folder in sorted(one_run, key=lambda folder: len(folder.parts), reverse=True):
            for file in (*below[folder], *texts[folder]):
                file.home, file.key = folder, ""

    def join_the_only_run(self) -> None:
        """Texts of one run that lie above the only other run of their folder are that run's output; so are tables above
        a folder whose name says that it holds the event files of the same run.
        """
        texts = {
            home: files
            for home, files in self._by_home().items()
            if all(f.content in ("output", "table") for f in files)
        }
        under: dict[Path, list[ClaimedFile]] = defaultdict(list)
        for file in self.files:
            for folder in file.home.parents:
                if folder in texts:
                    under[folder].append(file)
        for folder in sorted(under, key=lambda home: len(home.parts), reverse=True):
            here, below = texts[folder], under[folder]
            one_each = len({f.key for f in here}) == 1 == len({f.run for f in below})
            tables = any(not f.is_output for f in here)
            events = all(f.content == "events" and f.home.name.lower() in FOLDERS_OF_EVENTS for f in below)
            if tables and not events:
                continue
            if one_each and any(not f.is_output or torchrun_rank(f.path) >= 0 for f in below):
                for file in (*here, *below):
                    file.home, file.key = folder, ""

    def _add_monitors(self) -> None:
        """A log of the machine belongs to the only run in its folder or below it; else it stands alone."""
        for file in self.monitors:
            runs = {f.run for f in self.files if f.home.is_relative_to(file.home) and f.content != "monitor"}
            file.home, file.key = runs.pop() if len(runs) == 1 else (file.home, file.path.name)
        self.files = [*self.files, *self.monitors]

    def _home(self, file: ClaimedFile) -> Path | None:
        """The folder of the run that the reader names."""
        ask = getattr(file.reader, "home", Reader.home)
        return guarded(
            file.reader, lambda: None if (home := ask(file.path)) is None else Path(home), file.path, self.problems
        )

    def _move(self, file: ClaimedFile, home: Path) -> None:
        """What lies above the root was not asked for."""
        file.home = home if home.is_relative_to(self.root) else self.root

    def _by_home(self) -> dict[Path, list[ClaimedFile]]:
        homes: dict[Path, list[ClaimedFile]] = defaultdict(list)
        for file in self.files:
            homes[file.home].append(file)
        return homes

    def _run(self, home: Path, key: str, members: list[ClaimedFile]) -> RunFiles:
        alone = self._homes_in[home_of(home)] == 1  # with others in it, it tells none of them
        named = home_of(home) if alone else home
        relative = named.relative_to(self.root).as_posix() if self.root in named.parents else ""
        own = name_of_history(home, self.root, alone=len(members) == len(self.files))
        name = own or "/".join(p for p in (relative, key) if p) or home_of(home.resolve()).name
        in_order = sorted(
            members, key=lambda f: (f.is_output, order_of_writing(f.path), f.attempt, place_in_log(f.path))
        )
        parts = [Part(f.path, f.reader, f.prefix, f.rank, _stream(f)) for f in in_order]
        return RunFiles(name, members[0].path if key and len(members) == 1 else home, parts)


def _stream(file: ClaimedFile) -> str:
    """Files of one stream continue each other: event files of a folder, the outputs of a job that was started again."""
    if file.content == "events":
        return str(file.path.parent)
    log = whole_log(file.path)
    if file.is_output and (slurm_job(log) or file.attempt >= 0):
        return f"{file.home}/*{log.suffix} {file.rank}"
    return str(log)


def _age(snapshot: ClaimedFile) -> int:
    """The number of the checkpoint that a snapshot lies in; that of the run itself is written last."""
    folder = snapshot.path.parent
    if not names_a_checkpoint(folder):
        return 2**62
    number = re.search(r"\d{1,18}$", folder.name)
    return int(number[0]) if number else 0
