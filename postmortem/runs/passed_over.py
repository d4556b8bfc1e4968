"""Files that may hold numbers of a training and that no reader reads: they are reported by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.roles import role_of
from postmortem.readers.packed import is_packed_log, is_packed_table
from postmortem.readers.shared.codecs import codec_of
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.rotated import rotated
from postmortem.readers.shared.step_column import COUNTERS, EPOCHS, plain

LOGS = {".wandb", ".out", ".err", ".log", ".stdout", ".stderr", ".csv", ".jsonl"}
"""Endings of files that a user would miss if they were passed over in silence."""
_BACKUP = later(r"(?:\.(?:bak|backup|old|orig|save|prev|copy)\d{0,3}|~)$", re.IGNORECASE)
_PACKED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2", ".zip": "zip"}
_NOT_OPENED = {
    **dict.fromkeys((".parquet", ".feather", ".arrow"), "a table in a binary format"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle, which can run code when it is opened"),
    **dict.fromkeys((".npz", ".npy", ".h5", ".hdf5", ".mat"), "arrays in a binary format"),
    **dict.fromkeys((".xlsx", ".xls"), "a spreadsheet"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "a database"),
}
_OF_METRICS = later(
    r"(?:^|[-_.])(?:metrics?|history|hist|logs?|loss(?:es)?|curves?|progress|scalars?)(?:$|[-_.\d])", re.IGNORECASE
)
_PAIR = later(r'"([^"\\]{1,80})"\s{0,20}:\s{0,20}(\[\s{0,20})?-?(?:\d|NaN|Infinity)')
_NUMBERS = re.compile(rb"\s*+\[\s*+\[?\s*+-?(?:\d|NaN|Infinity)[^\"]*+\Z")
_MOST_LISTED = 1000
"""Entries of a folder that is not searched that are looked at."""


def of_a_log(path: Path) -> Path | None:
    """The log that a file is by its name a part, a backup or a compressed copy of; the path itself for a log."""
    name = _BACKUP.sub("", path.name)
    packed = Path(name).suffix.lower()
    name = name[: -len(packed)] if packed in _PACKED else name
    part = rotated(name)
    name = part.base if part else re.sub(r"\.\d{1,3}$", "", name)
    is_log = "tfevents" in name or Path(name).suffix in LOGS or name == "trainer_state.json"
    return path.with_name(name) if is_log else None


def is_backup(path: Path) -> bool:
    """Whether the name of a file says that it is a backup copy."""
    return _BACKUP.search(path.name) is not None


def passed_over(path: Path, head: bytes) -> Problem | None:
    """Why a file that no reader claims, and that begins with `head`, is not read although it may hold numbers."""
    if is_backup(path) and of_a_log(path):
        why = "not read: a backup copy by its name; name it in the command to read it"
    elif (packed := _PACKED.get(path.suffix.lower())) and of_a_log(path):
        if is_packed_table(path.name) and (codec := codec_of(path.name, head)) is not None and codec.available:
            return None  # it was unpacked, and is no table of a training
        extra = packed == "zstd" and (is_packed_log(path.name) or is_packed_table(path.name))
        why = f"not read: compressed with {packed}; decompress it first" + ", or install the extra [zstd]" * extra
    elif (kind := _NOT_OPENED.get(path.suffix.lower())) and _OF_METRICS.search(path.stem):
        why = f"not opened: {kind}; export it as CSV to have it read"
    elif path.suffix.lower() == ".json" and (names := _series_in(head)):
        why = f"not read: JSON of a form that no reader knows, with numbers of {', '.join(names[:3])}"
    elif path.suffix.lower() == ".json" and _OF_METRICS.search(path.stem) and _NUMBERS.match(head):
        why = 'not read: a list of numbers without a name; save it as {"loss": [...]} to have it read'
    elif path.suffix.lower() not in LOGS and of_a_log(path) and head:
        why = f"not read: a part of {of_a_log(path).name} by its name"  # type: ignore[union-attr]
    else:
        return None
    return Problem(path=str(path), what=why, kind="skipped")


def hidden_logs(folder: Path) -> list[Problem]:
    """The problem of a hidden folder, which is not searched, if logs lie in it."""
    return _not_searched(folder, "a hidden folder")


def linked_logs(folder: Path) -> list[Problem]:
    """The problem of a link to a folder outside the searched one, which is not followed, if logs lie in it."""
    return _not_searched(folder, "a link to a folder elsewhere")


def _not_searched(folder: Path, kind: str) -> list[Problem]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e, _ in zip(entries, range(_MOST_LISTED), strict=False) if e.is_file())
    except OSError:
        return []  # nobody asked for it
    logs = [name for name in names if of_a_log(folder / name)]
    if not logs:
        return []
    more = ", …" if len(logs) > 3 else ""
    what = f"not searched: {kind}, with {', '.join(logs[:3])}{more}; name it in the command to read it"
    return [Problem(path=str(folder), what=what, kind="skipped")]


def _series_in(head: bytes) -> list[str]:
    """The metrics that a JSON file holds as lists of numbers, or in a list of objects that also count."""
    text = decoded(head)[0]
    pairs = _PAIR.findall(text)
    rows = text.lstrip()[:1] == "[" and any(plain(name) in {*COUNTERS, *EPOCHS} for name, _ in pairs)
    roles = [
        name for name, is_list in pairs if (is_list or rows) and role_of(name) in ("loss", "val_loss", "grad_norm")
    ]
    return list(dict.fromkeys(roles))
