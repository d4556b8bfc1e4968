"""Settings in which a rerun differs from the run: where its losses are not those of the log, the likeliest reason."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.printable import listed
from postmortem.readers.text.records.settings import settings_in
from postmortem.replay.roll.fidelity import ANOTHER_SETUP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postmortem.core.culprit import ReplayResult

_OPTION = re.compile(r"(?:--?)?([A-Za-z][\w.\-]*)=(.+)")
_OF_A_RERUN = re.compile(r"resume|ckpt|checkpoint|steps|epochs|iters|out|dir|path|device|port|name|rank")
"""Settings that a rerun has to have otherwise, or may."""


def reasoned(
    result: ReplayResult, config: Mapping[str, Any], command: Sequence[str], printed: Sequence[str]
) -> ReplayResult:
    """The result whose first reason for losses of another course is the settings that differ, if some are known to.

    config: of the run. printed: the first lines that the rerun printed.
    """
    if not result.fidelity.reasons:
        return result
    apart = _apart(config, {**_options(command), **settings_in(printed)})
    if not apart:
        return result
    reason = f"another configuration: {listed(apart)}"
    fidelity = replace(result.fidelity, reasons=(reason, *(r for r in result.fidelity.reasons if r != ANOTHER_SETUP)))
    return replace(result, fidelity=fidelity, culprit=replace(result.culprit, fidelity=fidelity))


def _options(command: Sequence[str]) -> dict[str, Any]:
    """The options among the words of a command: `--lr 0.3`, `--lr=0.3`, `lr=0.3`."""
    lines = []
    for word, following in zip(command, [*command[1:], "-"], strict=True):
        joined = _OPTION.fullmatch(word)
        if joined is not None:
            lines.append(f"{joined[1]}={joined[2]}")
        elif word.startswith("--") and not following.startswith("-"):
            lines.append(f"{word[2:]}={following}")
    return {name: value for line in lines for name, value in settings_in([line, line, line]).items()}


def _apart(run: Mapping[str, Any], rerun: Mapping[str, Any]) -> list[str]:
    """ "lr is 0.3 in the rerun and 1.0 in the run"."""
    known = {_plain(name): value for name, value in run.items()}
    found = []
    for name, value in rerun.items():
        before = known.get(_plain(name))
        comparable = isinstance(value, (int, float, str)) and isinstance(before, (int, float, str))
        if comparable and _differ(before, value) and not _OF_A_RERUN.search(_plain(name)):
            found.append(f"{name} is {value} in the rerun and {before} in the run")
    return found


def _differ(a: Any, b: Any) -> bool:
    try:
        return float(a) != float(b)
    except ValueError:
        return str(a) != str(b)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
