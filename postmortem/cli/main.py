"""The command ``postmortem``: a table of commands, each imported when it is called.

Every error is one line on stderr and an exit code: 0 judged without findings, 1 findings, 2 the command failed,
3 no findings but something could not be judged. ``--help`` imports only click and this file.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from postmortem._version import __version__
from postmortem.cli.shared import CONTEXT
from postmortem.core.collection import uncollected
from postmortem.core.errors import PostmortemError, described, did_you_mean
from postmortem.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "scan": ("postmortem.cli.scan:scan", "Find all runs below PATHS and report what happened to each."),
    "show": ("postmortem.cli.show:show", "Show how a run was read: sources, tags, roles, steps, problems."),
    "explain": ("postmortem.cli.explain:explain", "Explain a finding, a diagnosis or a log signature."),
    "rules": ("postmortem.cli.explain:rules", "List all findings, diagnoses and log signatures."),
    "checkpoints": (
        "postmortem.cli.checkpoints:checkpoints",
        "Check saved weights for non-finite values; name the last good checkpoint.",
    ),
    "replay": ("postmortem.cli.replay:replay", "Rerun the failing step and name the culprit."),
    "recipe": ("postmortem.cli.recipe:recipe", "Write a draft of a recipe for a run."),
    "run": ("postmortem.cli.run:run", "Run a training and watch it; name the culprit at the first non-finite value."),
    "check": ("postmortem.cli.check:check", "Run the first steps of a training; report why it would not learn."),
    "layout": (
        "postmortem.cli.layout:layout",
        "Name the line behind DDP's warning about gradient strides.",
    ),
    "compare": ("postmortem.cli.compare:compare", "Find the first step at which two runs differ."),
    "report": ("postmortem.cli.scan:report", "Write a self-contained HTML report of the runs below PATHS."),
    "export": ("postmortem.cli.export:export", "Write the numbers of a run as CSV or Parquet."),
    "watch-logs": ("postmortem.cli.watch_logs:watch_logs", "Follow growing runs and print what is new."),
    "serve": ("postmortem.cli.serve:serve", "Serve the state of a growing run over HTTP; set what is measured."),
    "annotate": ("postmortem.cli.annotate:annotate", "Write findings for TensorBoard and W&B to show."),
    "doctor": ("postmortem.cli.doctor:doctor", "Show versions, devices, readers and plugins, and what is missing."),
}

_GRACE = 1.0  # seconds for threads of the user's code to end


class _Commands(click.Group):
    """Knows the names and one-line helps without importing the commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        with uncollected():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = (
                f"; to scan a folder: postmortem scan {args[0]}"
                if os.path.exists(args[0])
                else did_you_mean(args[0], COMMANDS)
            )
            raise click.UsageError(f"unknown command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click's; prints ``--help`` and ``--version``."""
        with _closed_pipe_is_no_error():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's; runs the command."""
        with _closed_pipe_is_no_error():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@contextlib.contextmanager
def _closed_pipe_is_no_error() -> Iterator[None]:
    """Ends the command with exit code 0 if the reader of its output has gone; click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        _discard(sys.stdout)
        raise click.exceptions.Exit(0) from None


@click.command(
    cls=_Commands,
    context_settings=CONTEXT,
    invoke_without_command=True,
    epilog="Exit codes: 0 no findings, 1 findings, 2 error, 3 not everything could be judged.",
)
@click.version_option(__version__, "-V", "--version", prog_name="postmortem", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> int | None:
    """Find out why a PyTorch training run failed.

    Start with `postmortem scan FOLDER`.
    """
    if ctx.invoked_subcommand is not None:
        return None
    click.echo(ctx.get_help(), err=True)
    return 2


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits; `args` defaults to those of the process."""
    before = set(threading.enumerate())
    try:
        _run(args)
    except SystemExit as end:
        left = [t for t in threading.enumerate() if t not in before and not t.daemon]
        for thread in left:
            thread.join(_GRACE / len(left))
        if any(
            thread.is_alive() for thread in left
        ):  # started by a recipe: the interpreter would wait for them forever
            with contextlib.suppress(OSError, ValueError):  # nobody reads it
                sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise


def _run(args: Sequence[str] | None) -> NoReturn:
    _open_streams()
    if not sys.warnoptions:  # warnings of libraries concern our code, not the user's runs
        warnings.simplefilter("ignore")
    try:
        code = cli.main(args=list(args) if args is not None else None, prog_name="postmortem", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except PostmortemError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        _discard(sys.stdout)
        sys.exit(0)
    except OSError as error:  # readers and reporters handle errors of their own files: this one is of our output
        _discard(sys.stdout)
        _fail(f"{error.filename or 'the output'}: {error.strerror or error}", 2)
    except SystemExit:  # of click's shell completion
        raise
    except BaseException as error:
        if "POSTMORTEM_TRACEBACK" in os.environ:
            raise
        if _interrupted(error):
            _fail("interrupted", 130)
        _fail(f"internal error, please report it (POSTMORTEM_TRACEBACK=1 shows the traceback): {described(error)}", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted(error: BaseException) -> bool:
    """True if Ctrl-C caused `error`: during an import it leaves a module half initialised, and cleanup fails."""
    seen: list[BaseException] = []
    last: BaseException | None = error
    while last is not None and last not in seen:  # an exception raised from itself would loop
        if isinstance(last, KeyboardInterrupt):
            return True
        seen.append(last)
        last = last.__cause__ or last.__context__
    return False


def _open_streams() -> None:
    """Makes output safe to write to: characters that cannot be encoded are escaped, a closed stream discards."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Discards what is still buffered, so that flushing it at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> NoReturn:
    try:
        click.echo(f"postmortem: {printable(' '.join(message.split()))}", err=True)
    except (OSError, ValueError):  # stderr cannot be written: the exit code remains
        if not sys.stderr.closed:
            _discard(sys.stderr)
    sys.exit(code)
