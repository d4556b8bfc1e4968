"""The kind of damage that a problem describes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from postmortem.core.model import Finding
from postmortem.core.patterns import later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Problem, Severity
    from postmortem.core.view import View

Damage = Literal["truncated", "corrupt", "unreadable", "none"]
_UNREADABLE = later(
    r"cannot be (read|opened)|permission|not (a|an) \w+ (file|database)|unreadable|nothing (readable|could be read)",
    re.I,
)
_TRUNCATED = later(
    r"\bcut\b|truncat|ends? (inside|in the middle|within|before|early)|incomplete|unfinished|unexpected end|stops in",
    re.I,
)

_NULS = re.compile(r"(\d+) NUL bytes? in the text, ")
_A_ROW = 200
"""Bytes of a row of a log or two."""


def damage(problem: Problem) -> Damage:
    """An unreadable file, a file cut at its end or start, damage inside it, or none."""
    if problem.kind != "damage":
        return "none"
    if _UNREADABLE.search(problem.what) or problem.lost.strip().lower() in ("the file", "the whole file", "everything"):
        return "unreadable"
    return "truncated" if _TRUNCATED.search(problem.what) else "corrupt"


def findings(view: View, kind: Damage, code: str, name: str, severity: Severity) -> Iterator[Finding]:
    """One finding per file that has this kind of damage; its evidence has the first place."""
    files: dict[str, list[Problem]] = {}
    for problem in view.run.problems:
        if damage(problem) == kind:
            files.setdefault(problem.path, []).append(problem)
    for path, problems in files.items():
        first = problems[0]
        where = "" if first.line is None else f" at line {first.line}"
        if first.offset is not None:
            where = f" at byte {first.offset}"
        lost = f"; lost: {first.lost}" if first.lost else ""
        more = f" (and {len(problems) - 1} more places)" if len(problems) > 1 else ""
        yield Finding(
            code=code,
            name=name,
            severity="info" if all(map(_is_a_row, problems)) else severity,
            message=f"{path.rsplit('/', 1)[-1]}{where}: {first.what}{lost}{more}",
            evidence={
                "path": path,
                "offset": first.offset,
                "line": first.line,
                "kept": first.kept,
                "lost": first.lost,
                "places": len(problems),
            },
        )


def _is_a_row(problem: Problem) -> bool:
    """Whether no more than a row of a log can be lost, which changes nothing that the others show."""
    nuls = _NULS.match(problem.what)
    return nuls is not None and int(nuls[1]) <= _A_ROW
