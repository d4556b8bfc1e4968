"""What the command line, notebooks and plugins call: `load`, `scan`, `localize`, `replay`."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.checkpoints.find import by_epochs, checkpoints_of, find_checkpoints, is_checkpoint
from postmortem.checkpoints.of_run import look_into, name_parameters
from postmortem.core import model
from postmortem.core.config import Config, check_selectors, make_options
from postmortem.core.display import HOOKS
from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError, UsageError, described
from postmortem.core.model import Finding, Problem, Verdict
from postmortem.core.report import Report, RunReport
from postmortem.core.run import Run
from postmortem.core.view import View
from postmortem.detectors import DETECTORS, NotChecked
from postmortem.diagnoses import CAUSES
from postmortem.judging import comparison
from postmortem.judging.around import around
from postmortem.judging.causes import diagnose
from postmortem.readers import READERS
from postmortem.runs.assemble import read_run
from postmortem.runs.group import RunFiles, discover

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from postmortem.checkpoints.health import Health
    from postmortem.core.culprit import Culprit, ReplayResult
    from postmortem.core.registry import Broken
    from postmortem.judging.comparison import Comparison
    from postmortem.replay.model import TrainStep

    PathLike = str | os.PathLike[str]

_ENDINGS = ("crash", "hang", "silent-death")  # their step is the last one that the log has, which was still fine


def load(path: PathLike, *, roles: Mapping[str, str] | None = None) -> Run:
    """One run: its numbers (`.frame`), what its logs say (`.events`) and what could not be read (`.problems`).

    `path` is a file or a folder; `roles` maps tags to roles where their names do not tell. Content never
    raises: damage becomes a Problem and the frames may be empty. NotFoundError where the path does not exist,
    UsageError where it holds several runs (the message lists them).

    >>> run = load("sample_runs/killed")
    >>> run.ended, run.roles
    ('killed', {'loss': 'loss', 'time': 'step_time', 'mfu': 'throughput'})
    >>> list(run.frame.columns)
    ['run', 'source', 'rank', 'segment', 'tag', 'step', 'wall_time', 'value']
    """
    path = Path(path)
    found, problems = discover([path])
    if len(found) > 1:
        paths = ", ".join(str(run.parts[0].path if run.path == path else run.path) for run in found[:10])
        raise UsageError(f"{path} holds {len(found)} runs, load one of them: {paths}{', …' if len(found) > 10 else ''}")
    files = found[0] if found else RunFiles(path.resolve().name, path)
    run = _read(files, roles, [path], ())
    run.problems += problems
    return run


def scan(
    paths: PathLike | Iterable[PathLike],
    *,
    config: Config | None = None,
    keep: bool = True,
    look_into_checkpoints: bool = False,
    baseline: PathLike | None = None,
    replay_failed: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Reads every run below `paths` and says what happened to each.

    `config` selects and tunes detectors; `keep` keeps each `Run` in its report (for notebooks; costs memory);
    `look_into_checkpoints` opens the saved weights of every run (needs torch), else only of failed runs where
    torch is installed; `baseline` is a run that each one is compared with; `replay_failed` reruns the step at fault
    of each failed run that has a recipe.py and a checkpoint, so that its report carries the culprit (runs the user's
    recipe); `progress` is called with (done, total, name of the run about to be read).
    NotFoundError where a path does not exist or nothing below it can be read; UsageError where the
    configuration names something unknown.

    >>> report = scan("sample_runs/nan-log-of-zero")
    >>> report.runs[0].verdict, report.runs[0].findings[0].name
    ('failed', 'nan-onset')
    """
    config = config or Config()
    detectors = _detectors(config)
    roots = [Path(p) for p in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    found, problems = discover(roots)
    if not found and not problems:
        raise NotFoundError(f"{', '.join(str(r) for r in roots)}: no training log found (event files, .wandb, .out/.log, CSV, trainer_state.json)")
    reference = load(baseline, roles=config.roles) if baseline is not None else None
    if reference is not None and not reference.n_points:
        raise NotFoundError(f"{baseline}: no numbers in the baseline")
    lying_in = Counter(folder for files in found for folder in (files.path, *files.path.parents))
    shared = {folder for folder, runs in lying_in.items() if runs > 1}
    reports = []
    for i, files in enumerate(found):
        if progress:
            progress(i, len(found), files.name)
        run = _read(files, config.roles, roots, shared)
        reports.append(judge(run, config, detectors=detectors, look_into_checkpoints=look_into_checkpoints))
        if reference is not None and run.path.resolve() != reference.path.resolve():
            reports[-1].notes = (*reports[-1].notes, f"baseline: {compare(reference, run).summary()}")
        if replay_failed and reports[-1].verdict == "failed" and run.checkpoints:
            _add_culprit(reports[-1])
        if not keep:
            reports[-1].run = None
    if progress:
        progress(len(found), len(found), "")
    options = {"paths": [str(r) for r in roots], "select": list(config.select), "ignore": list(config.ignore), "fail_on": config.fail_on}
    return Report(runs=tuple(sorted(reports, key=_worst_first)), version=__version__, options=options, problems=tuple(problems))


def _read(files: RunFiles, roles: Mapping[str, str] | None, roots: list[Path], shared: Collection[Path]) -> Run:
    """A run below `roots` with its checkpoints, which are not looked for in folders that several runs lie in (`shared`)."""
    run = read_run(files, roles=roles)
    if files.path.is_dir():
        run.checkpoints = checkpoints_of(files.path, roots, shared)
        name_parameters(run)
    return run


def _detectors(config: Config) -> list[Any]:
    known = [(d.code, d.name) for d in DETECTORS]
    for where, selectors in (("select", config.select), ("ignore", config.ignore)):
        check_selectors(selectors, known, where=where)
    check_selectors(config.detectors, known, where="detectors")
    return [
        d(make_options(d.Options, config.detectors.get(d.name, {}), where=f"detectors.{d.name}")) for d in DETECTORS if config.selects(d.code, d.name)
    ]


def judge(run: Run, config: Config | None = None, *, detectors: list[Any] | None = None, look_into_checkpoints: bool = False) -> RunReport:
    """What happened to a run that was read: runs the detectors, finds the root cause, gives the verdict."""
    config = config or Config()
    view = View(run)
    detectors = _detectors(config) if detectors is None else detectors
    findings, checked, not_checked = _detect(view, detectors)
    onset = min((f.step for f in findings if f.severity == "error" and f.step is not None and f.name not in _ENDINGS), default=None)
    failed = any(f.severity == "error" for f in findings)
    run.checkpoints = by_epochs(run.checkpoints, view.last_step) if run.checkpoints else run.checkpoints
    if run.checkpoints and (failed or look_into_checkpoints) and look_into(run, onset, view.last_step, every=look_into_checkpoints):
        findings, checked, not_checked = _detect(view, detectors)
    findings.sort(key=lambda f: _gravest_first(f, run))
    numbered = tuple(replace(f, id=f"f{i}") for i, f in enumerate(findings, 1))
    story, linked = diagnose(view, numbered)
    by_id = {f.id: f for f in linked}
    root = by_id.get(story.findings[0]) if story and story.findings else next(iter(linked), None)
    return RunReport(
        name=run.name,
        path=str(run.path),
        verdict=_verdict(view, linked),
        ended=run.ended,
        sources=tuple(run.sources),
        first_step=view.first_step,
        last_step=view.last_step,
        diagnosis=story,
        findings=linked,
        events=tuple(run.event_list),
        problems=tuple(run.problems),
        checked=tuple(checked),
        not_checked=tuple(not_checked),
        around=around(view, root),
        notes=tuple(run.notes),
        checkpoints=tuple(run.checkpoints),
        run=run,
    )


def _detect(view: View, detectors: list[Any]) -> tuple[list[Finding], list[str], list[tuple[str, str]]]:
    """Findings, the codes that were checked, and (code, why) of those that were not."""
    findings: list[Finding] = []
    checked: list[str] = []
    not_checked: list[tuple[str, str]] = []
    for detector in detectors:
        try:
            findings += detector.detect(view)
            checked.append(detector.code)
        except NotChecked as why:
            not_checked.append((detector.code, str(why)))
        except Exception as error:  # noqa: BLE001 - a fault of one detector costs what it finds, not the scan
            fault = f"the detector failed: {described(error)}"
            not_checked.append((detector.code, fault))
            view.run.problems.append(Problem(path=str(view.run.path), what=f"{detector.code}: {fault}", lost="what it would have found"))
    return findings, checked, not_checked


def _gravest_first(finding: Finding, run: Run) -> tuple[object, ...]:
    """At the same step the loss comes before its gradient norm: it is what people know and what a replay compares."""
    of_the_loss = run.roles.get(finding.tag or "") == "loss"
    where = (finding.step is None, finding.step or 0, finding.code, not of_the_loss, finding.tag or "")
    return model.SEVERITIES.index(finding.severity), *where


def _verdict(view: View, findings: tuple[Finding, ...]) -> Verdict:
    """By the gravest finding; without any, a run of which no quantity was seen at two steps is not judged."""
    severities = {f.severity for f in findings}
    if "error" in severities:
        return "failed"
    if "warning" in severities:
        return "suspect"
    return "healthy" if any(len(s) and s.step[0] != s.step[-1] for s in view.series) else "not-judged"


def _worst_first(report: RunReport) -> tuple[int, str]:
    return model.VERDICTS.index(report.verdict), report.name


def exit_code(report: Report, fail_on: str) -> int:
    """0 judged and nothing at or above `fail_on`; 1 findings at or above it; 2 nothing could be read; 3 nothing found,
    but a run could not be judged or data inside a file was lost."""
    if not report.runs:
        return 2
    counted = model.SEVERITIES[: model.SEVERITIES.index(fail_on) + 1] if fail_on != "never" else ()
    if any(f.severity in counted for run in report.runs for f in run.findings):
        return 1
    lost = any(p.lost for run in report.runs for p in run.problems) or any(p.lost for p in report.problems)
    blind = any(run.verdict == "not-judged" or not any(source.points for source in run.sources) for run in report.runs)
    return 3 if lost or blind else 0


def broken_plugins() -> list[Broken]:
    """Readers, detectors and diagnoses that could not be imported: a scan goes on without them and says so."""
    return [*READERS.broken, *DETECTORS.broken, *CAUSES.broken]


def compare(a: Run, b: Run) -> Comparison:
    """The first step at which two runs part, exactly and beyond noise, and what differs in their settings; `a` is the baseline."""
    return comparison.compare(a, b)


def localize(train_step: TrainStep, **options: Any) -> Culprit:
    """Reruns one training step and names what made it fail: module, operator, source line, samples, fixes. Needs torch."""
    from postmortem.replay.culprit.localize import localize as run

    return run(train_step, **options)


def replay(
    target: PathLike,
    *,
    recipe: str | None = None,
    step: int | None = None,
    checkpoint: PathLike | None = None,
    **options: Any,
) -> ReplayResult:
    """Reruns the step at which the run `target` failed and names what made it fail. Needs torch.

    `target` is a run folder, its log, or a checkpoint (its log is looked for beside it). `recipe` is ``FILE.py[:function]``, by
    default the recipe.py in or beside the run. Options: `device`, `fix`, `trust`, `progress`, `repro` as in `postmortem.replay.driver`.
    ReplayError, NotFoundError or UsageError say in one line what is in the way.
    """
    _need_torch("replay")
    from postmortem.replay import driver

    path = Path(target)
    if not path.exists():
        raise NotFoundError(f"no such run or checkpoint: {path}")
    found: list[RunReport] = []
    itself = is_checkpoint(path)
    log = path.is_file() and not itself
    above = path.absolute().parent
    for folder in [above, above.parent] if itself else [path.parent] if log else [path]:
        try:
            found = list(scan(folder).runs)
        except NotFoundError:
            continue
        if found:
            break
    if log and (found := [r for r in found if any(Path(f).resolve() == path.resolve() for s in r.sources for f in s.files)]):
        path = path.parent  # where its checkpoints and the recipe are looked for
    if len(found) > 1 and not itself:
        raise UsageError(f"{path} holds {len(found)} runs, replay one of them: {', '.join(r.path for r in found[:10])}")
    report = found[0] if len(found) == 1 else None
    start = Path(checkpoint) if checkpoint is not None else path if itself else None
    return driver.replay(path, run=report.run if report else None, report=report, recipe=recipe, step=step, checkpoint=start, **options)


def _add_culprit(report: RunReport) -> None:
    """Replays a failed run; its report carries the culprit, or a note that says why there is none."""
    _need_torch("replay")
    from postmortem.replay import driver

    try:
        result = driver.replay(Path(report.path), run=report.run, report=report)
    except PostmortemError as error:
        report.notes = (*report.notes, f"replay: {error}")
        return
    report.culprit = result.culprit
    if result.next and report.diagnosis is not None:
        report.diagnosis = replace(report.diagnosis, next=result.next)


def checkpoints(path: PathLike, *, trust: bool = False) -> list[Health]:
    """The health of every checkpoint in and below `path`, by step, each compared with the one before. Needs torch.

    `trust` unpickles whatever is in them: only for files of one's own.
    """
    _need_torch("checkpoints")
    from postmortem.checkpoints.health import health

    if not Path(path).exists():
        raise NotFoundError(f"no such file or folder: {path}")
    paths = [Path(c.path) for c in find_checkpoints(Path(path))]
    return [health(p, previous, trust=trust) for previous, p in zip([None, *paths], paths, strict=False)]


def _need_torch(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(what, "replay")
    try:
        os.getcwd()
    except OSError:  # torch would end the process
        raise PostmortemError(f"{what}: the working directory is gone, and torch needs one: cd to a folder that exists") from None


def _findings_frame(report: Report) -> Any:
    import pandas as pd

    columns = ["run", "verdict", "id", "code", "name", "severity", "tag", "rank", "step", "end_step", "message", "because_of", "evidence"]
    rows = [[r.name, r.verdict, *(getattr(f, c) for c in columns[2:])] for r in report.runs for f in r.findings]
    return pd.DataFrame(rows, columns=columns).astype({"rank": "Int16", "step": "Int64", "end_step": "Int64"})


def _html(thing: Any) -> str:
    from postmortem.reporters.html import fragment

    return fragment(judge(thing) if isinstance(thing, Run) else thing)


def _text(thing: Report | RunReport) -> str:
    from postmortem.reporters import REPORTERS, RenderOptions

    whole = thing if isinstance(thing, Report) else Report(runs=(thing,), version=__version__)
    return REPORTERS["text"](whole, RenderOptions()).rstrip("\n")


def _plot_run(thing: Any, ax: Any = None) -> Any:
    from postmortem.plots import plot_run

    return plot_run(thing, ax)


HOOKS.update(findings_frame=_findings_frame, html=_html, text=_text, plot_run=_plot_run)
