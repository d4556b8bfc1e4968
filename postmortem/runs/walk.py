"""Walks a folder for the files that a reader claims; a log that cannot be read becomes a Problem."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from postmortem.checkpoints.find import is_checkpoint
from postmortem.checkpoints.histories import is_level
from postmortem.core.annotations import FOLDER, SUFFIX
from postmortem.core.errors import described
from postmortem.core.model import Problem
from postmortem.core.registry import collected_faults, report_fault
from postmortem.readers import READERS, Reader
from postmortem.readers.aim.repository import FOLDER as AIM
from postmortem.readers.aim.repository import is_part_of_a_repository
from postmortem.readers.mlflow import is_part_of_a_store
from postmortem.readers.packed import unpacked_head
from postmortem.readers.shared.decode import begins_with_nuls, leading_nuls
from postmortem.readers.shared.rotated import rotated
from postmortem.readers.text.lines.blocks import looks_like_text
from postmortem.runs.own_reports import is_own_report, is_own_table
from postmortem.runs.passed_over import hidden_logs, is_backup, linked_logs, of_a_log, passed_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = TypeVar("Answer")
HEAD = 4096
_SKIPPED_FOLDERS = {
    *(".git", "__pycache__", "node_modules", ".venv", "venv", "site-packages", ".ipynb_checkpoints"),
    "latest-run",  # W&B's link to a run that is there as well
    FOLDER,  # what `postmortem annotate` wrote
}
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_ALSO_LOGS = {".txt", ".tsv", ".json"}
"""Endings of files that a reader may take although their names alone do not say that they are logs."""
_NO_LOGS = {
    *(".py", ".pyi", ".ipynb", ".sh", ".c", ".cc", ".cpp", ".cu", ".h", ".js", ".html", ".xml"),
    *(".json", ".yaml", ".yml", ".toml", ".ini", ".cfg"),
}
"""Endings of source code and of settings, which are text and no logs."""
WANDB_RUN = re.compile(r"(?:offline-)?run-.+")


def files_below(root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Regular files below `root` in a stable order; links to folders below it are followed once, after all real ones.

    A link to a folder elsewhere is not followed: what lies there need not be of these runs, nor end. A path that is
    named like a log and cannot be read (a pipe, a device, a broken link) becomes a Problem.
    """
    visited: set[tuple[int, int]] = set()
    real_root = root.resolve()
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
            problems.append(
                Problem(path=top, what=f"cannot be listed: {error.strerror}", lost="the folder", extent="file")
            )
            continue
        for entry in entries:
            try:
                mode = entry.stat().st_mode
            except OSError as error:  # a link that leads nowhere or in a circle, or a file that is gone by now
                mode, why = 0, f"cannot be opened: {error.strerror}"
            else:
                why = f"is {kind_of(mode)}, not a file"
            if stat.S_ISDIR(mode):
                if entry.name in _SKIPPED_FOLDERS or entry.name.endswith((".dist-info", ".egg-info")):
                    continue
                folder = Path(entry.path)
                if entry.name.startswith(".") and entry.name != AIM:
                    problems += hidden_logs(folder)
                elif not entry.is_symlink():
                    pending.append(entry.path)
                elif folder.resolve().is_relative_to(real_root):
                    links.append(entry.path)
                else:
                    problems += linked_logs(folder)
            elif stat.S_ISREG(mode):
                yield Path(entry.path)
            elif of_a_log(Path(entry.path)) == Path(entry.path) and not of_wandb_itself(Path(entry.path)):
                problems.append(Problem(path=entry.path, what=why, lost="the file", extent="file"))


def real_path(path: Path | str, folders: dict[str, str]) -> str:
    """The path without links; `folders` are those that were asked for, as most lie in the same ones."""
    folder, name = os.path.split(path)
    if not name or name in (".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    if folder not in folders:
        folders[folder] = real_path(folder, folders) if folder else os.path.realpath(folder)
    return os.path.join(folders[folder], name)


def kind_of(mode: int) -> str:
    """Names what is at a path that is neither a file nor a folder, from its `st_mode`."""
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def claim(path: Path, problems: list[Problem], *, explicit: bool = False) -> type[Reader] | None:
    """The first reader that recognises the file by its name and first bytes, or None.

    A log that no reader recognises becomes a Problem, and so does any such file that the user named (`explicit`).
    """
    if of_wandb_itself(path) or is_level(path):
        return None
    if path.name == "requirements.txt" or is_part_of_a_store(path) or is_part_of_a_repository(path):
        return None  # versions, not numbers; or read with the file that stands for its run
    if not explicit and path.name == "culprit.txt" and path.with_suffix(".json").is_file():
        return None  # what `postmortem run` answered of a run
    if not explicit and path.name.endswith(SUFFIX) and "tfevents" in path.name:
        return None  # what `postmortem annotate` wrote
    try:
        head = _head(path, explicit=explicit)
    except OSError as error:
        if explicit or of_a_log(path):
            problems.append(
                Problem(path=str(path), what=f"cannot be opened: {error.strerror}", lost="the file", extent="file")
            )
        return None
    unpacked = unpacked_head(path.name, head)
    text = unpacked or head
    if is_own_report(text):
        if explicit:
            problems.append(
                Problem(path=str(path), what="a report of postmortem, not a log", lost="the file", extent="file")
            )
        return None
    if not explicit and (is_own_table(text) or unpacked == b""):
        return None
    if not explicit and path.suffix == ".txt" and len(head.split()) == 1:
        return None  # one word is no log: Megatron's latest_checkpointed_iteration.txt
    found = _claimant(path, (of_a_log(path) if explicit and is_backup(path) else None) or path, head, problems)
    if found is None and explicit and path.suffix.lower() not in _NO_LOGS:
        # who names a file says that it is a log, whatever its ending: train.md, log.dat
        found = _claimant(path, path.with_name(path.name + ".log"), head, problems)
    if found is not None:
        return found
    if explicit or (head and _is_a_log(path) and (not looks_like_text(head) or begins_with_nuls(path))):
        problems.append(Problem(path=str(path), what=_why_unknown(path, head), lost="the file", extent="file"))
    elif skipped := passed_over(path, head):
        problems.append(skipped)
    return None


def _claimant(path: Path, name: Path, head: bytes, problems: list[Problem]) -> type[Reader] | None:
    """The first reader that would claim the file `path` if it were named `name`."""
    return next((r for r in READERS if guarded(r, partial(_claims, r, name, head), path, problems)), None)


def _claims(reader: type[Reader], path: Path, head: bytes) -> bool:
    return reader.claims(path, head)


def runs_in(path: Path, reader: type[Reader], problems: list[Problem]) -> list[Path]:
    """The paths of the runs in a file that holds several; the path itself for any other, and if it holds none."""
    ask = getattr(reader, "runs", Reader.runs)
    return guarded(reader, lambda: ask(path), path, problems) or [path]


def guarded(reader: type[Reader], ask: Callable[[], Answer], path: Path, problems: list[Problem]) -> Answer | None:
    """What a reader answers about `path`; None if it raises, which becomes a Problem, once for each fault."""
    try:
        return ask()
    except OSError:  # a fault of the file, which its reading reports
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a fault of one reader costs its files, not the scan
        what = f"the {reader.kind} reader failed: {described(error)}"
        with collected_faults(problems):
            report_fault(Problem(path=str(path), what=what))
        return None


def _head(path: Path, *, explicit: bool) -> bytes:
    """The first 4 KiB; of a log, those after the NUL bytes that it begins with, unless it holds nothing else.

    Files of size 0 are not opened unless the user named them: below /proc such files wait for a reader for ever.
    """
    if not explicit and not os.stat(path).st_size:
        return b""
    with path.open("rb") as file:
        head = file.read(HEAD)
        if head and not head.strip(b"\0") and (explicit or of_a_log(path) or path.suffix in _ALSO_LOGS):
            file.seek(leading_nuls(path))
            head = file.read(HEAD) or head
        return head


def _why_unknown(path: Path, head: bytes) -> str:
    if not head or unpacked_head(path.name, head) == b"":
        return "the file is empty"
    if not head.strip(b"\0"):
        return "contains only NUL bytes, as left by a system crash"
    if begins_with_nuls(path):
        return "begins with NUL bytes, and no reader knows what follows"
    if is_checkpoint(path):
        return "a checkpoint, not a log: use `postmortem checkpoints`"
    packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    return f"compressed with {packed}: decompress it first" if packed else "no reader knows this kind of file"


def of_wandb_itself(path: Path) -> bool:
    """Whether `path` is W&B's own log, which is about its upload and not about the training, or a link to it."""
    if not path.name.startswith("debug"):
        return False
    inside_run = path.parent.name == "logs" and WANDB_RUN.fullmatch(path.parent.parent.name)
    return bool(inside_run or path.parent.name == "wandb")


def _is_a_log(path: Path) -> bool:
    """Whether the name is that of a log itself, or of a part of one, which should hold text."""
    return of_a_log(path) == path or rotated(path.name) is not None
