"""The text output of how a run was read, without a judgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.core.distinct import distinct
from postmortem.core.objective import because
from postmortem.core.printable import filled, number, printable
from postmortem.core.view import View

if TYPE_CHECKING:
    from postmortem.core.run import Run
    from postmortem.core.series import Series

_LONGEST_TAG = 200  # the longest names of layers are not as long
_SETTINGS, _LONGEST_VALUE = 12, 60


def run_facts(run: Run) -> dict[str, Any]:
    """What `postmortem show --format json` prints, as plain types."""
    view = View(run)
    return {
        "run": run.name,
        "path": run.url or str(run.path),
        "ended": run.ended,
        "sources": [_columns(s, "kind", "files", "points") for s in run.sources],
        "steps": {"first": view.first_step, "last": view.last_step},
        "step_axis": run.step_axis,
        "tags": [_tag(s) for s in view.series],
        "restarts": [_columns(r, "tag", "before", "after") for r in view.restarts],
        "ranks": sorted({int(r) for s in run.streams for r in distinct(s.points.cells("rank")) if r >= 0}),
        "events": [_columns(e, "kind", "severity", "file", "line", "step", "rank", "message") for e in run.event_list],
        "checkpoints": [_columns(c, "path", "step") for c in run.checkpoints],
        "config": run.config,
        "notes": [*run.notes, *(f"{because(tag, found)} (role {found.role})" for tag, found in run.presumed.items())],
        "skipped": {str(why): count for why, count in run.skipped.items()},
        "skipped_by_plugins": dict(run.skipped.words),
        "problems": [_columns(p, "path", "offset", "line", "what", "kept", "lost", "kind") for p in run.problems],
    }


def _columns(thing: object, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _cut(tag: str) -> str:
    """A tag as a line shows it; the JSON has all of it."""
    return tag if len(tag) <= _LONGEST_TAG else f"{tag[:_LONGEST_TAG]}… ({len(tag)} characters)"


def _tag(s: Series) -> dict[str, Any]:
    step = s.printed_step
    ends: dict[str, Any] = {"first_step": int(step[0]), "last_step": int(step[-1]), "last": float(s.value[-1])}
    ends |= {} if s.epoch is None else {"axis": "epoch"}
    return {
        "tag": s.tag,
        "role": s.role,
        "rank": None if s.rank < 0 else s.rank,
        "source": s.source,
        "points": len(s),
        **ends,
    }


def run_text(run: Run, width: int = 100) -> str:
    """What `postmortem show` prints: sources, tags and their roles, steps, restarts, problems. Safe for a terminal of
    `width` columns; only names and paths that are longer are not broken."""
    lines = []
    for line in _lines(run):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += filled(line.strip(), width, indent, indent + "  ") if len(line) > width else [line]
    return printable("\n".join(lines))


def _lines(run: Run) -> list[str]:
    facts = run_facts(run)
    lines = [f"{facts['run']}  ({facts['path']})", f"end of run: {facts['ended']}"]
    steps = facts["steps"]
    unit = f"{facts['step_axis']}s"
    lines.append(f"{unit}: {steps['first']} to {steps['last']}" if steps["last"] is not None else "steps: none")
    if facts["ranks"]:
        lines.append(f"ranks: {', '.join(map(str, facts['ranks']))}")
    lines += ["", "sources:"] + [
        f"  {s['kind']}: {s['points']} points from {_files(s['files'])}" for s in facts["sources"]
    ]
    if facts["tags"]:
        width = min(60, max(len(t["tag"]) for t in facts["tags"]))
        shown = [t | {"tag": _cut(t["tag"])} for t in facts["tags"]]
        lines += ["", "tags:"]
        for t in shown:
            rank = "" if t["rank"] is None else f" rank {t['rank']}"
            span = f"{'epochs' if 'axis' in t else unit} {t['first_step']} to {t['last_step']}"
            lines.append(
                f"  {t['tag']:<{width}}  {t['role'] or '-':<16} {t['points']:>8} points, {span}, "
                f"last {number(t['last'], 6)} ({t['source']}{rank})"
            )
    lines += _section(
        "restarts", [f"{_cut(r['tag'])}: step {r['before']} back to {r['after']}" for r in facts["restarts"]]
    )
    lines += _section(
        "events",
        [f"{e['severity']} {e['kind']} at {e['file']}:{e['line']}: {e['message'][:160]}" for e in facts["events"]],
    )
    lines += _section("checkpoints", [f"step {c['step']}: {c['path']}" for c in facts["checkpoints"]])
    lines += _section("configuration", _settings(facts["config"]))
    lines += _section("notes", facts["notes"])
    lines += _section("skipped intentionally", run.skipped.lines())
    lines += _section("problems", [_problem(p) for p in facts["problems"]])
    return lines


def _settings(config: dict[str, Any]) -> list[str]:
    """The settings in one row, the first ones of many."""
    if not config:
        return []
    shown = [f"{name} = {str(value)[:_LONGEST_VALUE]}" for name, value in [*config.items()][:_SETTINGS]]
    more = len(config) - len(shown)
    return [", ".join(shown) + (f" and {more:,} more (--format json shows all)" if more else "")]


def _files(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files: {files[0]}, …"


def _section(title: str, rows: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {row}" for row in rows)] if rows else []


def _problem(p: dict[str, Any]) -> str:
    where = "" if p["line"] is None else f" at line {p['line']}"
    if p["offset"] is not None:
        where = f" at byte {p['offset']}"
    rest = "; ".join(f"{word} {p[word]}" for word in ("kept", "lost") if p[word])
    return f"{p['path']}{where}: {p['what']}{' (' + rest + ')' if rest else ''}"
