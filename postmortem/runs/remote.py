"""Runs that lie elsewhere (``s3://bucket/runs``, ``https://host/train.log``): what readers take of them is copied here.

The copy is a folder in the place of temporary files, with the same names below it, that is removed when the program
ends. Of every file the first 4 KiB are asked for, and the rest only of those that a reader takes. A second call copies
what has been added since. Nothing is asked of the network unless the user named a URL.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from postmortem.checkpoints.find import is_weights
from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError, UsageError
from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.progress import progressed
from postmortem.readers.mlflow import is_part_of_a_store
from postmortem.runs.config import NAMES
from postmortem.runs.walk import HEAD, claim
from postmortem.runs.wandb_cloud import copy_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Thing = TypeVar("Thing")

_URL = later(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<rest>.*)", re.S)
_PIECE = 8 << 20
_PROBE = 4096
"""Bytes before the end of a copy that show whether the file only grew."""
_MOST_FILES = 100_000
_HTTP = ("http://", "https://")
_LOGGERS = ("fsspec", "s3fs", "gcsfs", "aiohttp", "aiobotocore", "botocore")
_SHARED_LOGGERS = ("google", "asyncio")
"""Loggers of file systems that other parts of the user's program may use as well."""
_JUDGED_WHOLE = {".json", ".gz", ".xz", ".bz2", ".zst", ".db", ".sqlite", ".sqlite3"}
"""Endings of files of which the first 4 KiB may not show what they hold."""


@dataclass(slots=True)
class Copy:
    """What was copied of a URL: `path` is its file or folder here, `problems` are about what was not copied."""

    url: str
    path: Path
    problems: list[Problem]

    def named(self, thing: Thing) -> Thing:
        """`thing` with the URL for the path of the copy in all of its text; dataclasses are changed in place."""
        return cast("Thing", _replaced(thing, str(self.path), self.url, set()))


_FOLDERS: dict[str, tempfile.TemporaryDirectory[str]] = {}
"""The folder of the copy of each URL, for as long as the program runs."""


def is_url(given: object) -> bool:
    """Whether the user gave a URL and not a path."""
    return isinstance(given, str) and _URL.fullmatch(given) is not None


def copied(url: str) -> Copy:
    """Copies what readers take below a URL, or what is new of it.

    NotFoundError if nothing is there, MissingExtra where a package that reaches it is not installed.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise UsageError(f"{url}: not a URL")
    if found["scheme"] == "file":
        return Copy(url, Path(unquote(urlsplit(url).path)), [])
    if found["scheme"] == "wandb":
        copy = Copy(url, _place(url), [])
        copy_runs(url, found["rest"], copy.path)
        return copy
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra(url, "remote") from error
    try:
        with _silenced():
            system, root = fsspec.core.url_to_fs(url)
            system.invalidate_cache()
            return _copied(system, root, url)
    except FileNotFoundError as error:
        if (why := _unreachable(error.__cause__)) is not None:
            raise PostmortemError(f"{url}: cannot be read: {why}") from error
        raise NotFoundError(f"{url}: no such file or folder") from error
    except ImportError as error:  # the package of a protocol, which fsspec names
        raise PostmortemError(f"{url}: {error}") from error
    except ValueError as error:  # a protocol that fsspec does not know
        raise UsageError(f"{url}: {error}") from error
    except PostmortemError:
        raise
    except Exception as error:  # each file system has exceptions of its own
        raise PostmortemError(
            f"{url}: cannot be read: {' '.join(str(error).split()) or type(error).__name__}"
        ) from error


@contextmanager
def _silenced() -> Iterator[None]:
    """What file systems log is in their errors as well, and where nobody listens Python prints it, with tracebacks.

    Loggers of other parts of the program are silent inside of this only.
    """
    import logging

    unheard = [name for name in (*_LOGGERS, *_SHARED_LOGGERS) if not logging.getLogger(name).handlers]
    handler = logging.NullHandler()
    for name in unheard:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in set(unheard) & {*_SHARED_LOGGERS}:
            logging.getLogger(name).removeHandler(handler)


def _unreachable(cause: BaseException | None) -> str | None:
    """Why fsspec did not find a file, where that is not because there is none: it has one exception for both."""
    status = getattr(cause, "status", None)
    if cause is None or status in (404, 410):
        return None
    answer = f"the server answers {status} {getattr(cause, 'message', '')}".rstrip()
    return answer if status is not None else " ".join(str(cause).split()) or type(cause).__name__


def _copied(system: Any, root: str, url: str) -> Copy:
    copy = Copy(url, _place(url), [])
    details = _listed(system, root)
    single = len(details) == 1 and next(iter(details)).rstrip("/") == root.rstrip("/")
    left: list[str] = []
    for count, (path, info) in enumerate(sorted(details.items()), 1):
        progressed(path, count)
        inside = None if single else _inside(path, root)
        if inside is None and not single:
            continue
        here = copy.path / inside if inside is not None else copy.path
        if is_weights(here.name) or here.name.endswith(".index.json"):
            left.append(path)
            continue
        try:
            _copy_file(system, path, info, here, explicit=single)
        except (OSError, RuntimeError) as error:
            what = f"cannot be copied: {' '.join(str(error).split())}"
            copy.problems.append(Problem(path=str(here), what=what, lost="the file", extent="file"))
    if left:
        what = (
            f"not copied: {len(left)} checkpoints, as {PurePosixPath(left[0]).name}; scan a copy to have them checked"
        )
        copy.problems.append(Problem(path=str(copy.path), what=what, kind="skipped"))
    copy.path.parent.mkdir(exist_ok=True)
    if not single:
        copy.path.mkdir(exist_ok=True)
    return copy


def _place(url: str) -> Path:
    """Where the copy of a URL lies."""
    if url not in _FOLDERS:
        _FOLDERS[url] = tempfile.TemporaryDirectory(prefix="postmortem-")
    name = re.sub(r"[^\w.-]", "_", PurePosixPath(urlsplit(url).path).name or urlsplit(url).netloc) or "run"
    return Path(_FOLDERS[url].name) / name


def _listed(system: Any, root: str) -> dict[str, dict[str, Any]]:
    """The files at and below a path, with what is known of them."""
    if (root.startswith(_HTTP) and not root.endswith("/")) or (not root.startswith(_HTTP) and system.isfile(root)):
        return {root: system.info(root)}  # of a page of links `find` follows all of them
    details: dict[str, dict[str, Any]] = system.find(root, detail=True)
    if not details:
        raise FileNotFoundError(root)
    if len(details) > _MOST_FILES:
        raise PostmortemError(f"{root}: {len(details)} files; name a folder with fewer than {_MOST_FILES}")
    return details


def _inside(path: str, root: str) -> Path | None:
    """Where a file lies below the root; None for one that lies elsewhere, as a link on a page of a web server may."""
    if not path.startswith(root.rstrip("/") + "/"):
        return None
    below = unquote(path[len(root.rstrip("/")) :]).lstrip("/")
    parts = PurePosixPath(below).parts
    a_file = parts and ".." not in parts and "?" not in below and not below.endswith((".py", "/"))
    return Path(*parts) if a_file else None


def _copy_file(system: Any, path: str, info: dict[str, Any], here: Path, *, explicit: bool) -> None:
    """Copies the head of a file, and all of it if a reader takes it; else the size is that of the file, for nothing."""
    if info.get("size") is None:
        info = {**info, **system.info(path)}
    size = None if info.get("size") is None else int(info["size"])
    known = here.stat().st_size if here.is_file() else 0
    if known and size is not None and _only_grew(system, path, here, known, size):
        _append(system, path, here, known, size)
    else:
        here.parent.mkdir(parents=True, exist_ok=True)
        head = system.cat_file(path, start=0, end=min(HEAD, size) if size is not None else HEAD) if size != 0 else b""
        here.write_bytes(head[:HEAD])
        head = head[:HEAD]
        if size is None or size > len(head):
            if here.suffix.lower() in _JUDGED_WHOLE or _wanted(here, explicit=explicit):
                _append(system, path, here, len(head), size)
            elif size is not None:
                os.truncate(here, size)
    if (modified := _modified(info)) is not None:
        os.utime(here, (modified, modified))


def _wanted(here: Path, *, explicit: bool) -> bool:
    """Whether a scan would read the file that begins like `here`."""
    beside = here.name in NAMES or here.name.endswith(("-wal", "-journal")) or is_part_of_a_store(here)
    return beside or claim(here, [], explicit=explicit) is not None


def _only_grew(system: Any, path: str, here: Path, known: int, size: int) -> bool:
    """Whether the copy is the beginning of the file, by the bytes before its end and its first ones."""
    if size < known:
        return False
    with here.open("rb") as file:
        first = file.read(min(HEAD, known))
        start = max(0, known - _PROBE)
        file.seek(start)
        last = file.read(known - start)
    same_end = system.cat_file(path, start=start, end=known) == last
    return bool(same_end and system.cat_file(path, start=0, end=len(first)) == first)


def _append(system: Any, path: str, here: Path, start: int, size: int | None) -> None:
    """Copies the bytes from `start` on, in ranges; a server that tells no size is asked for the whole."""
    with here.open("r+b") as out:
        out.seek(start)
        if size is None:
            out.seek(0)
            out.write(system.cat_file(path))
            return
        while start < size:
            stop = min(start + _PIECE, size)
            piece = system.cat_file(path, start=start, end=stop)
            if not piece:
                break  # it was truncated meanwhile
            if len(piece) > stop - start:  # the server knows no ranges, and sent the whole
                piece, stop = piece[start:size], size
            out.write(piece)
            start += len(piece)


def _modified(info: dict[str, Any]) -> float | None:
    """When a file was written, as the file system says it under one of its names."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            with suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
    return None


def _replaced(thing: Any, old: str, new: str, seen: set[int]) -> Any:
    """`thing` with `new` for `old` in all text of its dataclasses and containers."""
    if isinstance(thing, str):
        return thing.replace(old, new)
    if isinstance(thing, (tuple, list, set, frozenset)) and not hasattr(thing, "_fields"):
        return type(thing)(_replaced(item, old, new, seen) for item in thing)
    if isinstance(thing, dict):
        thing.update({key: _replaced(value, old, new, seen) for key, value in thing.items()})
        return thing
    if is_dataclass(thing) and not isinstance(thing, type) and id(thing) not in seen:
        seen.add(id(thing))
        for field in fields(thing):
            value = getattr(thing, field.name)
            if isinstance(value, (str, tuple, list, set, frozenset, dict)) or is_dataclass(value):
                object.__setattr__(thing, field.name, _replaced(value, old, new, seen))
    return thing


def named(copies: Iterable[Copy], thing: Thing) -> Thing:
    """`thing` with the URLs for the paths of all copies."""
    for copy in copies:
        thing = copy.named(thing)
    return thing


@contextmanager
def naming(copies: Sequence[Copy]) -> Iterator[None]:
    """What is raised inside names the URLs."""
    try:
        yield
    except (NotFoundError, UsageError) as error:
        raise type(error)(named(copies, str(error))) from error
