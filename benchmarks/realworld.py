"""Scores a scan on real logs that people have labelled.

    python benchmarks/realworld.py --corpus DIR [--out FILE.md] [--only NAME]

DIR holds `truth.json`, a list with one entry per file: `id`, `file`, `kind`, and `truth` with

- `health`: healthy, failed, no_data, or ambiguous (not scored)
- `facts`: points and tags counted by other means; `nonfinite`: tag -> first step and value
- `onset`: tag -> first non-finite step; `spikes`, `divergence`: tag and step
- `crash`: type and 1-based line of the decisive message; `benign_lines`: look like failures and are none
- `labels`: short names of what is in the file

Each check is one thing that is true or false about one file; the table counts them. Exits with 1 only if
a scan raised an exception.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import postmortem
from postmortem import Finding, RunReport

NONFINITE = {"nan-onset", "inf-onset", "nonfinite-gradient", "masked-nonfinite"}
SPIKE = {"loss-spike", "gradient-spike", "gradient-explosion", "divergence"} | NONFINITE
COLUMNS = ("read", "points", "onset", "verdict", "crash", "labels", "spikes", "benign")

LABELS: dict[str, Callable[[RunReport], bool]] = {
    "nan": lambda r: bool(NONFINITE & names(r)),
    "inf": lambda r: bool(NONFINITE & names(r)),
    "grad_inf": lambda r: bool(NONFINITE & names(r)),
    "divergence": lambda r: bool({"divergence", "loss-spike"} & names(r)),
    "grad_explosion": lambda r: bool({"gradient-explosion", "gradient-spike"} & names(r)),
    "crash": lambda r: "crash" in names(r),
    "oom": lambda r: r.ended == "out-of-memory" or mentions(r, "oom", "out-of-memory"),
    "host_oom_kill": lambda r: r.ended in ("killed", "out-of-memory") or mentions(r, "killed"),
    "cuda_error": lambda r: mentions(r, "cuda", "illegal"),
    "time_limit": lambda r: r.ended == "time-limit",
    "interrupted": lambda r: r.ended == "interrupted",
    "silent_death": lambda r: "silent-death" in names(r),
    "ddp_strides_warning": lambda r: mentions(r, "stride"),
}
"""What a label must lead to. Labels that are not here say what is remarkable, not what must be found."""

CRASHES = {
    "cuda_oom": ("oom", "out-of-memory"),
    "xla_oom": ("oom", "out-of-memory", "exhausted"),
    "cuda_illegal_memory_access": ("cuda", "illegal"),
    "dataloader_worker_killed": ("worker", "killed"),
    "slurm_time_limit": ("time-limit", "cancelled"),
    "interrupt": ("interrupt", "sigint", "sigterm"),
}
"""The kind of the event must contain one of these words; other types of crash may have any kind."""


@dataclass(frozen=True)
class Check:
    """One check: its column in the table, whether it passed, and what was seen instead."""

    column: str
    ok: bool
    what: str


def names(report: RunReport) -> set[str]:
    return {f.name for f in report.findings}


def mentions(report: RunReport, *words: str) -> bool:
    return any(word in e.kind for e in report.events for word in words)


def number(value: Any) -> float:
    return float(value)  # "nan", "inf" and "-inf" are strings in the truth


def same(a: float, b: Any) -> bool:
    """Equal to the six digits or so that the truth was written with."""
    return math.isclose(a, number(b), rel_tol=1e-5) or (math.isnan(a) and math.isnan(number(b)))


def leaf(tag: str) -> str:
    return tag.rsplit("/", 1)[-1].strip().lower().replace(" ", "_")


def check_points(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    """Points and tags as counted; the main series has its length, first and last value."""
    facts = truth.get("facts") or {}
    frame = report.run.frame
    if "n_points" in facts:
        yield Check("points", len(frame) == facts["n_points"], f"{len(frame)} points, not {facts['n_points']}")
    counts = frame["tag"].value_counts()
    expected = {t: n for t, n in (facts.get("tags") or facts.get("keys") or {}).items() if not t.startswith(("_", "("))}
    if expected:
        wrong = [f"{t}: {counts.get(t, 0)} not {n}" for t, n in expected.items() if counts.get(t, 0) != n]
        yield Check("points", not wrong, "; ".join(wrong[:5]))
    if main := facts.get("main"):
        found = [g["value"].to_numpy() for _, g in frame.groupby(["tag", "source", "rank"], observed=True)]
        hit = any(len(v) == main["n"] and same(v[0], main["first"][1]) and same(v[-1], main["last"][1]) for v in found)
        yield Check("points", hit, f"no series of {main['n']} points from {main['first']} to {main['last']}")


def check_onset(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    """The first non-finite step of every tag, exact, and no other tag."""
    found: dict[str, list[Finding]] = {}
    for f in report.findings:
        if f.name in NONFINITE and f.step is not None and f.tag is not None:
            found.setdefault(f.tag, []).append(f)
    exact = (truth.get("facts") or {}).get("nonfinite")
    if exact is not None:
        for tag, fact in exact.items():
            first = min((f.step for f in found.get(tag, [])), default=None)
            yield Check("onset", first == fact["first_step"], f"{tag}: {first}, not {fact['first_step']}")
        for tag in found.keys() - exact.keys():
            yield Check("onset", False, f"{tag} is always finite")
        return
    for name, step in (truth.get("onset") or {}).items():
        if name.endswith("_line"):
            yield Check("onset", any(e.line == step for e in report.events), f"no event in line {step}")
            continue
        steps = [f.step for tag, fs in found.items() if leaf(tag) == leaf(name) for f in fs]
        yield Check("onset", bool(steps) and min(steps) == step, f"{name}: {min(steps, default=None)}, not {step}")


def check_verdict(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    """Nothing more severe than info on a healthy run, an error on a failed one; a silent death is a warning."""
    health, severities = truth["health"], {f.severity for f in report.findings}
    said = f"{report.verdict}: " + ", ".join(
        f"{f.name} {f.tag or ''} @{f.step}" for f in report.findings[:4] if f.severity != "info"
    )
    if health == "healthy":
        yield Check("verdict", not severities & {"error", "warning"}, said)
    elif health == "no_data":
        yield Check("verdict", report.verdict == "not-judged", said)
    elif health == "failed" and "visible only in" not in truth["ended"]:
        enough = {"error", "warning"} if "silent_death" in truth["labels"] else {"error"}
        yield Check("verdict", bool(severities & enough), said)


def check_crash(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    """The decisive message was found in its line and is of a fitting kind."""
    if not (crash := truth.get("crash")):
        return
    if crash["line"] is None:  # inside a binary file
        events = list(report.events)
    else:
        # a traceback reaches from its header to its last line, and the truth may name either
        events = [
            e
            for e in report.events
            if e.line is not None and e.fields.get("first_line", e.line) <= crash["line"] <= e.line
        ]
    words = CRASHES.get(crash["type"])
    ok = any(words is None or any(w in e.kind for w in words) for e in events)
    yield Check(
        "crash", ok, f"{crash['type']} in line {crash['line']}; seen: {[(e.kind, e.line) for e in report.events[:6]]}"
    )


def check_labels(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    for label in truth["labels"]:
        if label in LABELS and truth["health"] != "ambiguous" and "visible only in" not in truth["ended"]:
            yield Check(
                "labels", LABELS[label](report), f"{label}; found {sorted(names(report))}, ended {report.ended}"
            )


def check_spikes(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    """Labelled spikes and divergences are covered by a finding on that tag, within 1 % of the run's length."""
    length = (report.last_step or 0) - (report.first_step or 0)
    labels = [*(truth.get("spikes") or []), *(truth.get("divergence") or [])] if truth["health"] != "ambiguous" else []
    for label in labels:
        step = label.get("step", label.get("from_step"))
        near = max(label.get("step_tolerance", 0), 0.01 * length, 2)
        hits = [
            f
            for f in report.findings
            if f.name in SPIKE and f.tag and leaf(f.tag) == leaf(label["tag"]) and f.step is not None
        ]
        ok = any(f.step - near <= step <= (f.end_step or f.step) + near for f in hits)
        yield Check("spikes", ok, f"{label['tag']} at {step}; found {[(f.name, f.step, f.end_step) for f in hits]}")


def check_benign(report: RunReport, truth: dict[str, Any]) -> Iterator[Check]:
    """Lines that look like a failure and are none."""
    if lines := truth.get("benign_lines"):
        blamed = [e for e in report.events if e.line in lines and e.severity != "info"]
        yield Check("benign", not blamed, f"{[(e.kind, e.line) for e in blamed[:4]]}")


CHECKS = (check_points, check_onset, check_verdict, check_crash, check_labels, check_spikes, check_benign)


def score(path: Path, truth: dict[str, Any]) -> list[Check]:
    """All checks of one file. `truth` may say null for what was not labelled."""
    try:
        report = postmortem.scan(path).runs
        if len(report) != 1:  # none is right where there is nothing to read
            return [Check("read", not report and truth["health"] == "no_data", f"{len(report)} runs")]
        return [Check("read", True, ""), *(c for check in CHECKS for c in check(report[0], truth))]
    except postmortem.PostmortemError as error:
        return [Check("read", truth["health"] == "no_data", str(error))]
    except Exception:  # noqa: BLE001 - what this benchmark is for
        return [Check("read", False, "raised " + traceback.format_exc(limit=-2))]


def table(results: dict[str, list[Check]], seconds: float) -> str:
    """A Markdown table: one row per file, `right/checked` per column, then the sum and what was wrong."""
    lines = [f"| file | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]

    def row(name: str, checks: list[Check]) -> str:
        cells = []
        for column in COLUMNS:
            held = [c.ok for c in checks if c.column == column]
            cells.append(f"{sum(held)}/{len(held)}" if held else "")
        return f"| {name} | {' | '.join(cells)} |"

    lines += [row(name, checks) for name, checks in results.items()]
    everything = [c for checks in results.values() for c in checks]
    clean = sum(all(c.ok for c in checks) for checks in results.values())
    lines.append(row("**sum**", everything))
    lines += [
        "",
        f"{clean} of {len(results)} files all right, "
        f"{sum(c.ok for c in everything)} of {len(everything)} checks, {seconds:.1f} s.",
        "",
    ]
    lines += [f"- {name}: {c.column}: {c.what.strip()}" for name, checks in results.items() for c in checks if not c.ok]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Scores a scan on real logs with known truth.")
    parser.add_argument("--corpus", type=Path, required=True, help="folder with truth.json")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    parser.add_argument("--only", default="", help="only files whose id contains this")
    args = parser.parse_args()
    if not (args.corpus / "truth.json").is_file():
        print(f"skipped: no corpus at {args.corpus}")
        return 0
    entries = [e for e in json.loads((args.corpus / "truth.json").read_text()) if args.only in e["id"]]
    started = time.perf_counter()
    results = {e["id"]: score(args.corpus / e["file"], e["truth"]) for e in entries}
    text = table(results, time.perf_counter() - started)
    print(text, end="")
    if args.out:
        args.out.write_text(text)
    return int(any(c.what.startswith("raised") for checks in results.values() for c in checks))


if __name__ == "__main__":
    raise SystemExit(main())
