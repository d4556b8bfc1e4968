"""Shared by several commands: path arguments, loading one run, and keeping everything but the result off stdout."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from postmortem.core.errors import NotFoundError, UsageError
from postmortem.core.model import json_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from postmortem.core.run import Run


CONTEXT = {"help_option_names": ["-h", "--help"]}
"""Settings of every command, so that its help is the same with and without the group."""


class _Given(click.Path):
    """A path; an empty string (an unset shell variable) is refused, as it would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty path (an unset variable?)", param, ctx)
        if isinstance(value, str) and "://" in value:
            self.fail("this command reads local files only, copy them here first", param, ctx)
        return super().convert(value, param, ctx)


class _Source(_Given):
    """A path, or a URL, which stays as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, str) and "://" in value else super().convert(value, param, ctx)


PATH = _Given(path_type=Path)
SOURCE = _Source(path_type=Path)
"""A path or a URL (``s3://…``)."""


def columns() -> int:
    """The width of the terminal, or of COLUMNS; 100 where there is neither, as in a pipe."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def loaded(path: Path | str, roles: Mapping[str, str] | None = None) -> Run:
    """The one run at `path`. Raises NotFoundError if nothing in it can be read, with the reason."""
    from postmortem import api  # not at the top: `explain` and `rules` start without it

    warn_of_broken_plugins("readers", "dialects", "checkpoint formats")
    run = api.load(path, roles=roles)
    if not run.sources:
        raise NotFoundError(
            "; ".join(f"{p.path}: {p.what}" for p in run.problems[:5]) or f"{path}: no training log found"
        )
    return run


def warn_of_broken_plugins(*kinds: str, used: bool = False) -> None:
    """Prints a line to stderr for each plugin of these kinds (default: all) that failed to import.

    With `used`, of the kinds that the command used until now.
    """
    from postmortem import api  # as in `loaded`

    for plugin in api.broken_plugins(*kinds, used=used):
        click.echo(f"postmortem: skipped a plugin that failed to load: {plugin.where}: {plugin.why}", err=True)


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Redirects what the user's code writes to stdout to stderr, including child processes and C code."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed: there is nothing to keep clean
        yield
        return
    try:
        with contextlib.suppress(OSError):  # no stderr either
            os.dup2(2, 1)
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # closed by the user's code
            sys.stdout.flush()
        with contextlib.suppress(OSError, TypeError, AttributeError):  # where C has no library of its own
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def echo_json(document: Any) -> None:
    """Prints strict JSON, with non-finite numbers as strings."""
    click.echo(json.dumps(json_value(document), indent=2, allow_nan=False))


def write_whole(path: Path, text: str) -> None:
    """Writes a text file atomically, see `whole_file`. Raises OSError."""
    with whole_file(path) as stream:
        stream.write(text.encode("utf-8"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write: an existing file is replaced only when the new one is complete. Raises OSError."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe, /dev/stdout
        with path.open("wb") as stream:
            yield stream
        return
    umask = os.umask(0)
    os.umask(umask)
    handle, name = tempfile.mkstemp(prefix=".postmortem-", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        new.chmod(path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~umask)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def refuse_to_replace_a_log(output: Path | None, paths: Sequence[Path | str]) -> None:
    """Raises UsageError if the output would replace a file that is read from the paths."""
    from postmortem.runs.walk import claim  # as in `loaded`

    if output is None or not output.is_file():
        return
    real = output.resolve()
    roots = [path.resolve() for path in paths if isinstance(path, Path)]
    if real in roots or (any(map(real.is_relative_to, roots)) and claim(output, []) is not None):
        raise UsageError(f"{output} is a log that this command reads: write to another file")
