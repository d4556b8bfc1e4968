"""Findings of damaged files, by how much of them is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.model import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Extent, Problem, Severity
    from postmortem.core.view import View


def findings(view: View, extents: set[Extent], code: str, name: str, severity: Severity) -> Iterator[Finding]:
    """One finding per file with damage of these extents; its evidence has the first place."""
    files: dict[str, list[Problem]] = {}
    for problem in view.run.problems:
        if problem.kind == "damage" and problem.extent in extents:
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
            severity="info" if all(problem.extent == "row" for problem in problems) else severity,
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
