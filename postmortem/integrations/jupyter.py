"""`%load_ext postmortem`: the line magic ``%postmortem`` and the accessor ``df.postmortem``."""

from __future__ import annotations

import shlex
from typing import Any

from postmortem.core.errors import PostmortemError, UsageError
from postmortem.integrations import pandas as pandas  # registers df.postmortem


def register(shell: Any) -> None:
    """Adds the magic to a running IPython. In a terminal, which shows no HTML, it prints the report as well."""
    in_notebook = hasattr(shell, "kernel")
    shell.register_magic_function(magic if in_notebook else printed, magic_kind="line", magic_name="postmortem")


def magic(line: str) -> Any:
    """Scan paths, by default the current folder, and show the report: ``%postmortem runs/``.

    The value is a `RunReport` for one run, else a `Report`. What cannot be read is one line, not a traceback.
    """
    from postmortem import api

    try:
        report = api.scan(_paths(line) or ["."])
    except PostmortemError as error:
        print(f"postmortem: {error}")
        return None
    return report[0] if len(report) == 1 and not report.problems else report


def printed(line: str) -> Any:
    """Scan paths, by default the current folder, and print the report: ``%postmortem runs/``.

    The value is a `RunReport` for one run, else a `Report`. What cannot be read is one line, not a traceback.
    """
    report = magic(line)
    if report is not None:
        print(report)
    return report


def _paths(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from None
    options = [word for word in words if word.startswith("-")]
    if options:
        raise UsageError(f"%postmortem takes paths, not {options[0]}; for options: postmortem.scan(…)")
    return words
