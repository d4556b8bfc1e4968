"""The parts of a report on one run or many runs, in reading order. All formats for people use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from postmortem.core.model import SEVERITIES, VERDICTS
from postmortem.core.printable import number
from postmortem.core.report import LEFT_OUT
from postmortem.reporters.shared.culprit_words import brief, leads
from postmortem.reporters.shared.what_happened import happened, incident
from postmortem.reporters.shared.words import clean, count, end_of, squeezed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.model import Event, Finding, Problem, ProblemKind, Strength, Verdict
    from postmortem.core.report import Around, Report, RunReport

CLAIMS: dict[Strength, str] = {"certain": "Cause", "likely": "Likely cause", "possible": "Possible cause"}
"""How a diagnosis is introduced, by its strength."""

_SHOWN_ELSEWHERE = {
    "exception",
    "exception_class",
    "exception_message",
    "first_line",
    "last_line",
    "frame",
    "failures",
    "numbers",
}
"""Fields of an event that its message or its place already show."""
_FIELD_WORDS = {"suspects": "suspect ranks", "ranks": "on ranks", "count": "times"}

_LONG = 200  # characters of a message of which a diagnosis quotes the first sentence only


@dataclass(frozen=True, slots=True)
class Fold:
    """Findings of one code that are shown as one line, earliest first, and their consequences."""

    members: tuple[Finding, ...]
    consequences: tuple[Fold, ...] = ()

    @property
    def first(self) -> Finding:
        """The earliest of them."""
        return self.members[0]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one verdict with the same root cause."""

    verdict: Verdict
    cause: str
    runs: tuple[RunReport, ...]


def folded(run: RunReport) -> tuple[Fold, ...]:
    """The findings of a run: root causes, the diagnosed one first, each with its consequences by step."""
    by_id = {f.id: f for f in run.findings if f.id}
    families: dict[int, list[Finding]] = {}
    roots: dict[int, Finding] = {}
    for finding in run.findings:
        root = _root(finding, by_id)
        roots.setdefault(id(root), root)
        family = families.setdefault(id(root), [])
        if finding is not root:
            family.append(finding)
    diagnosed = run.diagnosis.findings if run.diagnosis else ()

    def rank(fold: Fold) -> tuple[bool, int, float]:
        other = not any(m.id in diagnosed for m in fold.members)
        return other, SEVERITIES.index(fold.first.severity), _step(fold.first)

    folds = []
    for members in _same_code(list(roots.values())):
        consequences = [f for member in members for f in families[id(member)]]
        folds.append(Fold(members, tuple(Fold(group) for group in _same_code(consequences))))
    return tuple(sorted(folds, key=rank))


def _root(finding: Finding, by_id: dict[str, Finding]) -> Finding:
    """The end of the chain of causes; the finding itself if the chain is a cycle."""
    seen = {finding.id}
    at = finding
    while at.because_of in by_id:
        at = by_id[at.because_of]
        if at.id in seen:
            return finding
        seen.add(at.id)
    return at


def _same_code(findings: list[Finding]) -> list[tuple[Finding, ...]]:
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=_step):
        groups.setdefault((finding.code, finding.severity), []).append(finding)
    return [tuple(group) for group in groups.values()]


def _step(finding: Finding) -> float:
    return float("inf") if finding.step is None else finding.step


def place(fold: Fold, run: RunReport) -> str:
    """Where the finding is: "in train/loss at step 4821", "in 12 tags, first train/loss at step 4821"."""
    first = fold.first
    tags = list(dict.fromkeys(f.tag for f in fold.members if f.tag))
    ranks = list(dict.fromkeys(f.rank for f in fold.members if f.rank not in (None, -1)))
    words = []
    if tags:
        several = f"{count(len(tags), 'tag')}, first " if len(tags) > 1 else ""
        words.append(f"in {several}{clean(tags[0], 60)}")
    if len(tags) <= 1 and len(fold.members) > max(1, len(ranks)):
        words.append(f"{len(fold.members)} times, first")
    if ranks:
        words.append(f"on rank {ranks[0]}" if len(ranks) == 1 else f"on {len(ranks)} ranks, first rank {ranks[0]}")
    if first.step is not None:
        words.append(f"{'after' if after_step(run, first) else 'at'} {first.unit} {first.step}")
    return " ".join(words)


def after_step(run: RunReport, finding: Finding) -> bool:
    """Whether it is known only to have come after its step, the last one logged: a crash that prints no step."""
    return finding.tag is None and finding.step is not None and finding.step == run.last_step


def describe(fold: Fold, run: RunReport, *, told: bool = False) -> str:
    """The fold in one line, after its code and name: the message of a single finding, else where it is.

    `told`: the text of the diagnosis is shown above; a message that it contains is not repeated.
    """
    message, summary = fold.first.message, run.diagnosis.summary if told and run.diagnosis else ""
    start = message.partition(". ")[0] if len(message) > _LONG else message  # all that a summary has of a long one
    if not message or start in summary:
        return place(fold, run)
    if len(fold.members) == 1:
        return clean(message, 400)
    where = place(fold, run)
    return f"{where}: {clean(message, 400)}" if where.endswith("first") else where


def headline(run: RunReport, *, name_first: bool = False) -> str:
    """What happened, in one line: "NAN001 nan-onset in train/loss at step 4821"; without a tag, also the message.

    With `name_first`, "nan-onset in train/loss at step 4821 (NAN001)".
    """
    if run.verdict == "not-judged":
        return why_not_judged(run)
    folds = folded(run)
    if not folds or (run.verdict == "healthy" and folds[0].first.severity == "info"):
        left_out = sum(why == LEFT_OUT for _, why in run.not_checked)
        others = f", {left_out} left out" if left_out else ""
        return (
            f"{count(len(run.checked), 'check')} found nothing wrong{others}" if run.checked else "nothing wrong found"
        )
    first = folds[0].first
    event = seen_in_log(run, first)
    words = f"{clean(first.name)} {place(folds[0], run)}".strip()
    words = f"{words} ({clean(first.code)})" if name_first else f"{clean(first.code)} {words}"
    message = event.message if event else ""
    if event is None and first.tag is None:
        message = first.message
    return f"{words}: {squeezed(message, 100)}" if message else words


def seen_in_log(run: RunReport, finding: Finding) -> Event | None:
    """The event that a finding without a tag was made from: the one at its line."""
    if finding.tag is not None or "line" not in finding.evidence:
        return None
    at = (finding.evidence.get("file"), finding.evidence["line"])
    return next((e for e in run.events if (e.file, e.line) == at), None)


def why_not_judged(run: RunReport) -> str:
    """Why there is no verdict: the first problem, else what the run lacks."""
    if run.problems:
        return clean(min(run.problems, key=lambda p: list(PROBLEM_HEADINGS).index(p.kind)).what, 160)
    if not run.checked and any(why == LEFT_OUT for _, why in run.not_checked):
        return f"every possible check was {LEFT_OUT}"
    if not sum(s.points for s in run.sources):
        return "it contains no metrics and no crash"
    return "no metric is logged at more than one step: nothing to judge"


def cause(run: RunReport) -> str:
    """The root cause by which runs are grouped: the culprit, else the diagnosis; for a crash also what failed."""
    if run.verdict == "not-judged":
        return why_not_judged(run)
    if run.culprit is not None and leads(run):
        return clean(f"{run.culprit.cause}: {brief(run.culprit)}")
    folds = folded(run)
    name = clean(folds[0].first.name if folds else "nothing wrong found")
    if run.diagnosis:
        name = clean(run.diagnosis.name)
    event = seen_in_log(run, folds[0].first) if folds else None
    if event is None:
        return name
    if event.kind == "generic-exception":  # no known failure: its message distinguishes causes
        words = re.sub(r"0x[0-9a-f]+|[0-9]+", "#", squeezed(event.message, 60))
        return f"{name.removesuffix(': ' + event.kind)}: {words}"
    return name if event.kind in name else f"{name}: {clean(event.kind)}"


def explained(run: RunReport, limit: int = 0) -> list[str]:
    """The culprit that a replay found, then the cause that the log alone allows to name, a line each."""
    lines = []
    if run.culprit is not None and leads(run):
        surely = f"(established: {run.culprit.established})"
        lines.append(clean(f"Culprit: {run.culprit.cause}: {brief(run.culprit)} {surely}"))
        if incident(run.culprit) is not None:
            lines.append(f"What happened: {clean(happened(run.culprit), limit)}")
    if run.diagnosis:
        before = "From the log alone, without the culprit: " if lines else ""
        claim = f"{CLAIMS[run.diagnosis.strength]}: {clean(run.diagnosis.name)}."
        lines.append(f"{before}{claim} {clean(run.diagnosis.summary, limit)}")
    return lines


def name_among_others(run: RunReport, limit: int = 0) -> str:
    """The name of a run, with its folder or file where the name is that of W&B or MLflow and does not tell it."""
    where = PurePath(run.path).name
    name = clean(run.name, limit)
    return name if run.name in run.path or where in run.name else f"{name} ({clean(where)})"


def triage(report: Report) -> tuple[Group, ...]:
    """Runs by verdict and root cause: worst verdict first, then the most frequent cause, of two the one with a culprit.

    Healthy runs are one group.
    """
    groups: dict[tuple[Verdict, str], list[RunReport]] = {}
    for run in report.runs:
        groups.setdefault((run.verdict, "" if run.verdict == "healthy" else cause(run)), []).append(run)
    ordered = sorted(groups.items(), key=lambda g: (VERDICTS.index(g[0][0]), -len(g[1]), not leads(g[1][0]), g[0][1]))
    return tuple(Group(verdict, name, tuple(runs)) for (verdict, name), runs in ordered)


def in_common(runs: Sequence[RunReport]) -> tuple[str, list[str]]:
    """What is common to all runs of a group: the summary if all have the same one (else empty), and the next actions
    of the first run that all others have as well."""
    stories = [run.diagnosis for run in runs if run.diagnosis]
    if not stories or len(stories) < len(runs):
        return "", []
    same = len({story.summary for story in stories}) == 1
    shared = set.intersection(*(set(story.next) for story in stories))
    return stories[0].summary if same else "", [action for action in stories[0].next if action in shared]


def totals(report: Report) -> str:
    """ "400 runs: 12 failed, 3 suspect, 2 not judged, 383 healthy"."""
    verdicts = [run.verdict for run in report.runs]
    parts = [f"{verdicts.count(v):,} {v.replace('-', ' ')}" for v in VERDICTS if v in verdicts]
    return f"{count(len(verdicts), 'run')}: {', '.join(parts)}" if parts else "No run was found."


def worst_first(report: Report) -> list[RunReport]:
    """All runs in the order of `triage`."""
    return [run for group in triage(report) for run in group.runs]


def at_onset(around: Around) -> str:
    """The value at the onset; a dash if nothing was logged there or later."""
    is_there = around.at_step is None or around.at_step != around.before_step
    return number(around.at if is_there else None)


def about(run: RunReport) -> str:
    """The run in numbers: steps, sources with their points, end of run."""
    parts = [f"{run.unit}s {run.first_step} to {run.last_step}"] if run.last_step is not None else ["no steps"]
    parts += [f"{clean(s.kind)} ({count(s.points, 'point')})" if s.points else clean(s.kind) for s in run.sources]
    return " · ".join([*parts, end_of(run)])


def at_line(file: str, line: int | None = None, offset: int | None = None, run: RunReport | None = None) -> str:
    """ "train.out:812", "x.tfevents at byte 1234"; within a run, its own path is left out."""
    if run is not None and file.startswith(run.path):
        file = file[len(run.path) :].lstrip("/\\") or re.split(r"[/\\]", run.path)[-1]
    if line is not None:
        return f"{clean(file)}:{line}"
    return f"{clean(file)} at byte {offset}" if offset is not None else clean(file)


PROBLEM_HEADINGS: dict[ProblemKind, str] = {
    "damage": "damage",
    "skipped": "not read",
    "limit": "limits",
    "settings": "settings",
}
"""The heading under which problems of a kind are listed, in this order."""


def problem_lists(run: RunReport) -> list[tuple[str, list[str]]]:
    """The problems of a run in words under their headings; headings without any are left out."""
    lists = [
        (heading, [problem_line(p, run) for p in run.problems if p.kind == kind])
        for kind, heading in PROBLEM_HEADINGS.items()
    ]
    return [(heading, lines) for heading, lines in lists if lines]


def problem_line(problem: Problem, run: RunReport | None = None) -> str:
    """A problem in one line: where, what, what was lost and kept."""
    parts = [f"{at_line(problem.path, problem.line, problem.offset, run)}: {clean(problem.what, 300)}"]
    parts += [f"{word}: {clean(text, 200)}" for word, text in (("lost", problem.lost), ("kept", problem.kept)) if text]
    return "; ".join(parts)


def notable_events(run: RunReport) -> list[Event]:
    """Errors and warnings, the most severe first, then in the order of the log."""
    return sorted((e for e in run.events if e.severity != "info"), key=lambda e: SEVERITIES.index(e.severity))


def event_where(event: Event, run: RunReport) -> str:
    """ "train.out:812, rank 3, step 4821"."""
    parts = [at_line(event.file, event.line, run=run)] if event.file else []
    parts += [f"rank {event.rank}"] if event.rank not in (None, -1) else []
    parts += [f"step {event.step}"] if event.step is not None else []
    return ", ".join(parts)


_LAYOUT = "next: `postmortem layout -- COMMAND`, with the training command, names the parameter and the line"
_NEXT = {"ddp-stride": _LAYOUT, "stride-diag": _LAYOUT}
"""Events that another command explains."""


def event_facts(event: Event) -> list[str]:
    """Facts of an event that its message does not show: the line of the user's own code, then the other fields."""
    lines = []
    frame = event.fields.get("frame")
    if isinstance(frame, dict):
        code = f": {frame['code']}" if frame.get("code") else ""
        lines.append(f"at {frame.get('file')}:{frame.get('line')} in {frame.get('function')}{code}")
    rest = []
    for name, value in event.fields.items():
        values = value if isinstance(value, list) else [value]
        shown = ", ".join(str(v) for v in values if not isinstance(v, dict))
        if shown and name not in _SHOWN_ELSEWHERE and not name.endswith("_bytes") and shown not in event.message:
            rest.append(f"{_FIELD_WORDS.get(name) or name.replace('_', ' ')} {shown}")
    if rest:
        lines.append("; ".join(rest))
    if event.kind in _NEXT:
        lines.append(_NEXT[event.kind])
    return [squeezed(line, 300) for line in lines]


def unchecked(run: RunReport) -> list[str]:
    """Checks that were not done, by reason: "no learning rate found (LRS001, LRS002)"."""
    reasons: dict[str, list[str]] = {}
    for code, why in run.not_checked:
        reasons.setdefault(why, []).append(code)
    return [f"{clean(why)} ({', '.join(map(clean, codes))})" for why, codes in reasons.items()]


def location(run: RunReport, finding: Finding) -> tuple[str, int | None]:
    """The file, and the line if known, that a finding points at.

    The line of code that a replay found for the root cause; its own evidence (a log, a checkpoint), the crash's log
    line, else the first file of the source with the most numbers.
    """
    culprit = run.culprit
    if culprit and culprit.file and run.diagnosis and run.diagnosis.findings[:1] == (finding.id,):
        return culprit.file, culprit.line
    found = finding.evidence
    saved = [c["path"] for c in found.get("checkpoints") or () if isinstance(c, dict) and c.get("path")]
    file, line = found.get("file") or found.get("path") or next(iter(saved), None), found.get("line")
    if isinstance(file, str) and file:
        return file, line if isinstance(line, int) and line > 0 else None
    if finding.tag is None:
        for event in notable_events(run):
            if event.file and event.severity == "error":
                return event.file, event.line
    files = [f for source in sorted(run.sources, key=lambda s: -s.points) for f in source.files]
    return (files[0] if files else run.path), None


def no_checkpoint(run: RunReport) -> str:
    """The text about checkpoints if none is known to be good."""
    if any(c.step is None and c.finite is None for c in run.checkpoints):
        return "the checkpoint names do not show which was saved before that step"
    if run.diagnosis and run.diagnosis.name == "restarted":
        return "no checkpoint was found from which it went on"
    return "no checkpoint from before the fault was found"
