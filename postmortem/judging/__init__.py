"""From a run to its report: detectors, then causes, then the verdict. No paths, no replay.

A finding's severity becomes the verdict in `verdict_of`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.checkpoints.find import by_epochs
from postmortem.core.config import Config, check_selectors, make_options
from postmortem.core.errors import UsageError, described
from postmortem.core.model import SEVERITIES, Finding, Problem, Verdict
from postmortem.core.objective import because
from postmortem.core.report import LEFT_OUT, RunReport
from postmortem.core.view import View
from postmortem.detectors import DETECTORS, NotChecked
from postmortem.detectors.base import silenced
from postmortem.judging.around import around
from postmortem.judging.causes import diagnose
from postmortem.judging.epochs import Epochs
from postmortem.judging.presumed import qualified, weakened
from postmortem.judging.rows import without_row_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from postmortem.checkpoints.of_run import Inspected
    from postmortem.core.run import Run
    from postmortem.detectors import Detector

_ENDINGS = ("crash", "hang", "silent-death")  # their step is the last logged one, which was still fine


def judge(
    run: Run,
    config: Config | None = None,
    *,
    detectors: Sequence[Detector] | None = None,
    inspected: Inspected | None = None,
) -> RunReport:
    """The report of a run that was read: findings, root cause, verdict. Opens no file, changes nothing in `run`.

    `config` selects and tunes detectors (or `detectors` are given ready made); `inspected` are the run's checkpoints
    after inspection. UsageError if the configuration names something unknown.
    """
    detectors = chosen_detectors(config or Config()) if detectors is None else detectors
    return Examination(run, detectors).report(inspected)


def chosen_detectors(config: Config) -> list[Detector]:
    """The detectors that `config` selects, with its options. UsageError if it names something unknown."""
    known = [(d.code, d.name) for d in DETECTORS]
    for where, selectors in (("select", config.select), ("ignore", config.ignore)):
        check_selectors(selectors, known, where=where)
    check_selectors(config.detectors, known, where="detectors")
    return [_made(d, config.detectors.get(d.name, {})) for d in DETECTORS if config.selects(d.code, d.name)]


def _made(kind: type[Detector], options: Mapping[str, Any]) -> Detector:
    try:
        return kind(make_options(kind.Options, options, where=f"detectors.{kind.name}"))
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault of one detector costs what it finds, not the scan
        return _Unmade(kind, error)


class _Unmade:
    """Stands for a detector that could not be made: it answers with the error, as one that fails later."""

    Options = object

    def __init__(self, kind: type[Detector], error: Exception) -> None:
        self.code, self.name, self.severity, self.error = kind.code, kind.name, kind.severity, error

    def detect(self, view: View) -> Iterator[Finding]:
        """Raises the error."""
        raise self.error


class Examination:
    """A run while it is judged, in two steps: which checkpoints are worth opening depends on where the run failed.

    Making one runs the detectors that read the log. `report` runs those that read checkpoints and draws the
    conclusions.
    """

    def __init__(self, run: Run, detectors: Sequence[Detector]) -> None:
        self.run = run
        self.detectors = detectors
        self.view = View(run)
        of_log, self._of_checkpoints = _parted(detectors)
        self._of_log = _detect(self.view, of_log)
        self.checkpoints = tuple(by_epochs(run.checkpoints, self.view.last_step) if run.checkpoints else ())
        """The run's checkpoints, those named by epoch get a step if the log counts epochs."""

    @property
    def failed(self) -> bool:
        """Whether the log alone shows an error."""
        return any(f.severity == "error" for f in self._findings_of_log())

    @property
    def onset(self) -> int | None:
        """The first step at which the log shows an error; None if it shows none, or only how the run ended."""
        errors = [f for f in self._findings_of_log() if f.severity == "error" and f.name not in _ENDINGS]
        return min((f.step for f in errors if f.step is not None), default=None)

    def _findings_of_log(self) -> Iterable[Finding]:
        return (f for answer in self._of_log.values() for f in answer.findings)

    def report(self, inspected: Inspected | None = None) -> RunReport:
        """The report, including what is known of the checkpoints that were inspected."""
        run = self.run
        view = self.view.with_checkpoints(inspected.checkpoints if inspected is not None else self.checkpoints)
        answers = self._of_log | _detect(view, self._of_checkpoints)
        in_order = [answers[d.code] for d in self.detectors]
        found = [f for a in in_order for f in a.findings]
        hung = any(f.name == "hang" for f in found)  # then the log does not stop without a reason
        findings = sorted(
            (f for f in found if not (hung and f.name == "silent-death")), key=lambda f: _gravest_first(f, run)
        )
        numbered = tuple(replace(f, id=f"f{i}") for i, f in enumerate(findings, 1))
        story, linked, problems = diagnose(view, numbered)
        checked = tuple(a.code for a in in_order if a.why_not is None)
        left_out = [(d.code, LEFT_OUT) for d in DETECTORS if d.code not in answers]
        by_id = {f.id: f for f in linked}
        root = by_id.get(story.findings[0]) if story and story.findings else next(iter(linked), None)
        if story is not None and story.findings and root is not None:
            story = weakened(story, root, run)
        report = RunReport(
            name=run.name,
            path=str(run.path),
            verdict=verdict_of(view, linked, checked),
            ended=run.ended,
            sources=tuple(run.sources),
            first_step=view.first_step,
            last_step=view.last_step,
            unit="epoch" if run.step_axis == "epoch" else "step",
            diagnosis=story,
            findings=linked,
            events=tuple(run.event_list),
            problems=(*run.problems, *(a.problem for a in in_order if a.problem is not None), *problems),
            checked=checked,
            not_checked=(*left_out, *((a.code, a.why_not) for a in in_order if a.why_not is not None)),
            around=around(view, root),
            notes=(*run.notes, *_notes(run), *(inspected.notes if inspected is not None else ())),
            checkpoints=tuple(view.checkpoints),
            run=run,
        )
        return without_row_numbers(report, view) if run.step_axis == "row" else _at_epochs(report, view)


def _at_epochs(report: RunReport, view: View) -> RunReport:
    """The report with epochs for the steps of what the log places by an epoch."""
    epochs = Epochs(view)
    if not epochs:
        return report
    story = report.diagnosis
    return replace(
        report,
        findings=tuple(map(epochs.finding, report.findings)),
        diagnosis=None if story is None else epochs.diagnosis(story, report.findings),
        around=tuple(map(epochs.around, report.around)),
    )


class _Answer(NamedTuple):
    """The answer of one detector: its findings, or why it could not check the run (`why_not`)."""

    code: str
    findings: tuple[Finding, ...] = ()
    why_not: str | None = None
    problem: Problem | None = None


def _parted(detectors: Iterable[Detector]) -> tuple[list[Detector], list[Detector]]:
    """The detectors that read the log, and those that read checkpoints."""
    of_log: list[Detector] = []
    of_checkpoints: list[Detector] = []
    for detector in detectors:  # a plugin need not inherit from BaseDetector
        (of_checkpoints if getattr(detector, "reads_checkpoints", False) else of_log).append(detector)
    return of_log, of_checkpoints


def _detect(view: View, detectors: Iterable[Detector]) -> dict[str, _Answer]:
    """The answer of each detector, by its code."""
    with silenced():
        return _detected(view, detectors)


def _detected(view: View, detectors: Iterable[Detector]) -> dict[str, _Answer]:
    answers = {}
    listed = _listed_by(view.run)
    for detector in detectors:
        code = detector.code
        if listed and not code.startswith("DAT"):
            answers[code] = _Answer(code, why_not=f"a list of results: column {listed!r} names each row")
            continue
        try:
            unguarded = getattr(detector.detect, "unguarded", None)  # warnings are silent here for all of them
            found = unguarded(detector, view) if unguarded is not None else detector.detect(view)
            answers[code] = _Answer(code, tuple([qualified(_well_formed(f), view.run) for f in found]))
        except NotChecked as why:
            answers[code] = _Answer(code, why_not=str(why))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a faulty detector must not end the scan
            fault = f"the detector failed: {described(error)}"
            problem = Problem(path=str(view.run.path), what=f"{code}: {fault}", lost="the findings of this detector")
            answers[code] = _Answer(code, why_not=fault, problem=problem)
    return answers


def _listed_by(run: Run) -> str:
    """The column that names the rows of a table of results, if the run is nothing else; else "".

    Such rows have no order: a value that rises from one to the next, or a NaN among them, is no event of a training.
    """
    listed = [str(r.facts.get("listed by", "")) for r in run.readings]
    return listed[0] if listed and all(listed) else ""


def _well_formed(finding: Finding) -> Finding:
    """The finding of a plugin. TypeError or ValueError if nothing can be done with it."""
    if not isinstance(finding, Finding):
        raise TypeError(f"{finding!r} is not a Finding")
    if finding.severity not in SEVERITIES:
        raise ValueError(f"unknown severity {finding.severity!r}; the severities are {', '.join(SEVERITIES)}")
    return finding


def _gravest_first(finding: Finding, run: Run) -> tuple[Any, ...]:
    """At the same step the loss comes before its gradient norm: people know it best, and a replay compares it."""
    of_the_loss = run.roles.get(finding.tag or "") == "loss"
    where = (finding.step is None, finding.step or 0, finding.code, not of_the_loss, finding.tag or "")
    return SEVERITIES.index(finding.severity), *where


def _notes(run: Run) -> Iterator[str]:
    """What was concluded of the objective, and how many values were left out for which reason."""
    yield from (because(tag, found) for tag, found in run.presumed.items() if found.role == "loss")
    if skipped := run.skipped.lines():
        yield f"left out: {'; '.join(skipped)}"


def verdict_of(view: View, findings: Iterable[Finding], checked: Sequence[str]) -> Verdict:
    """By the most severe finding: an error is "failed", a warning "suspect".

    Without either, a run is "healthy" if some quantity was logged at two steps or more and something was `checked`,
    else, and where it is a table of results, "not-judged".
    """
    severities = {f.severity for f in findings}
    if "error" in severities:
        return "failed"
    if "warning" in severities:
        return "suspect"
    if _listed_by(view.run):
        return "not-judged"
    return "healthy" if checked and any(len(s) and s.step[0] != s.step[-1] for s in view.series) else "not-judged"
