"""What the command line, notebooks and plugins call: `scan`, `load`, `judge`, `compare`, `checkpoints`, `replay`, …"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.checkpoints.find import checkpoints_of, find_checkpoints
from postmortem.checkpoints.of_run import Inspected, inspect_named, inspect_run, name_parameters
from postmortem.core import model
from postmortem.core.config import Config
from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError, UsageError
from postmortem.core.registry import collected_faults
from postmortem.core.report import Report, RunReport
from postmortem.core.run import Run
from postmortem.judging import Examination, chosen_detectors, comparison
from postmortem.registries import OF_A_SCAN as OF_A_SCAN
from postmortem.registries import broken_plugins as broken_plugins
from postmortem.registries import registries as registries
from postmortem.runs.assemble import read_run
from postmortem.runs.config import config_for_replay
from postmortem.runs.group import RunFiles, discover
from postmortem.runs.target import resolve, shared_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postmortem.checkpoints.health import Health
    from postmortem.core.comparison import Comparison
    from postmortem.core.culprit import Culprit, ReplayResult
    from postmortem.core.model import Problem
    from postmortem.detectors import Detector
    from postmortem.replay.model import TrainStep
    from postmortem.replay.step.result import StepResult

    PathLike = str | os.PathLike[str]


def load(path: PathLike, *, roles: Mapping[str, str] | None = None) -> Run:
    """One run: its numbers (`.frame`), the events of its logs (`.events`) and what could not be read (`.problems`).

    `path` is a file or a folder; `roles` maps tags to roles where their names do not show them. Content never raises:
    damage becomes a Problem and the frames may be empty. NotFoundError if the path does not exist, UsageError
    where it holds several runs (the message lists them).

    >>> run = load("sample_runs/killed")
    >>> run.ended, run.roles
    ('killed', {'loss': 'loss', 'time': 'step_time', 'mfu': 'throughput'})
    >>> list(run.frame.columns)
    ['run', 'source', 'rank', 'segment', 'tag', 'step', 'wall_time', 'value']
    """
    path = _path(path, "load")
    found, problems = discover([path])
    if len(found) > 1:
        paths = ", ".join(str(run.parts[0].path if run.path == path else run.path) for run in found[:10])
        more = ", …" if len(found) > 10 else ""
        raise UsageError(f"{path} holds {len(found)} runs, load one of them: {paths}{more}")
    files = found[0] if found else RunFiles(path.resolve().name, path)
    run = _read(files, roles, [path], ())
    return replace(run, problems=[*run.problems, *problems])


def _path(given: object, verb: str, *, of_run: bool = False) -> Path:
    """The path that `verb` was given; with `of_run`, also that of a run or of its report. TypeError for the rest."""
    if of_run and isinstance(given, (Run, RunReport)):
        return Path(given.path)
    if isinstance(given, (str, os.PathLike)):
        return Path(given)
    kinds = "a path, a Run or a RunReport" if of_run else "a path"
    advice = ": choose one of its runs, such as report[0]" if of_run and isinstance(given, Report) else ""
    raise TypeError(f"{verb}() takes {kinds}, not {type(given).__name__}{advice}")


def _run(given: Run | RunReport | PathLike, verb: str, roles: Mapping[str, str] | None = None) -> Run:
    """The run that `verb` was given: itself, the one that a report kept, or the one at a path, which is loaded."""
    if isinstance(given, Run):
        return given
    if isinstance(given, RunReport) and given.run is not None:
        return given.run
    return load(_path(given, verb, of_run=True), roles=roles)


def scan(
    paths: PathLike | Iterable[PathLike],
    *,
    config: Config | None = None,
    keep: bool = True,
    look_into_checkpoints: bool = False,
    baseline: Run | RunReport | PathLike | None = None,
    replay_failed: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Reads every run below `paths` and reports what happened to each.

    `config` selects and tunes detectors; `keep` keeps each `Run` in its report (for notebooks; costs memory);
    `look_into_checkpoints` opens the saved weights of every run (needs torch), else only what a report depends on,
    where torch is installed; `baseline` is a run, its report or its path, which each run is compared with;
    `replay_failed` reruns the failing step of each failed run that has a recipe.py and a checkpoint, so that its
    report carries the culprit (runs the user's recipe); `progress` is called with (done, total, name of the run about
    to be read). NotFoundError if a path does not exist or nothing below it can be read; UsageError if the
    configuration names something unknown.

    >>> report = scan("sample_runs/nan-log-of-zero")
    >>> report.runs[0].verdict, report.runs[0].findings[0].name
    ('failed', 'nan-onset')
    """
    config = config or Config()
    detectors = chosen_detectors(config)
    roots = _roots(paths)
    found, problems = discover(roots)
    if not found and not problems:
        kinds = "event files, .wandb, .out/.log, CSV, trainer_state.json"
        raise NotFoundError(f"{', '.join(str(r) for r in roots)}: no training log found ({kinds})")
    reference = _run(baseline, "scan", config.roles) if baseline is not None else None
    if reference is not None and not reference.n_points:
        raise NotFoundError(f"{reference.path}: no numbers in the baseline")
    shared = shared_folders(found)
    reports = []
    for i, files in enumerate(found):
        if progress:
            progress(i, len(found), files.name)
        run = _read(files, config.roles, roots, shared)
        report = _judge(run, detectors, look_into_checkpoints)
        if reference is not None and run.path.resolve() != reference.path.resolve():
            report.notes = (*report.notes, f"baseline: {compare(reference, run).summary()}")
        if replay_failed and report.verdict == "failed" and run.checkpoints:
            _add_culprit(report)
        if not keep:
            report.run = None
        reports.append(report)
    if progress:
        progress(len(found), len(found), "")
    options = {
        "paths": [str(r) for r in roots],
        "select": list(config.select),
        "ignore": list(config.ignore),
        "fail_on": config.fail_on,
    }
    return Report(
        runs=tuple(sorted(reports, key=_worst_first)), version=__version__, options=options, problems=tuple(problems)
    )


def _roots(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    """The paths that a scan was given: one, or several of them."""
    given = paths if isinstance(paths, Iterable) and not isinstance(paths, (str, os.PathLike)) else [paths]
    roots = [_path(p, "scan") for p in given]
    if not roots:
        raise UsageError("scan: no path was given")
    return roots


def _read(files: RunFiles, roles: Mapping[str, str] | None, roots: Sequence[Path], shared: Collection[Path]) -> Run:
    """A run below `roots` with its checkpoints, which are not searched for in folders of several runs (`shared`)."""
    run = read_run(files, roles=roles, roots=roots, shared=shared)
    if not files.path.is_dir():
        return run
    with collected_faults() as faults:
        found = checkpoints_of(files.path, roots, shared)
        events = name_parameters(run.event_list, found)
    return replace(run, checkpoints=found, event_list=events, problems=[*run.problems, *faults])


def judge(
    run: Run | RunReport | PathLike, config: Config | None = None, *, look_into_checkpoints: bool = False
) -> RunReport:
    """What happened to a run: runs the detectors, finds the root cause, gives the verdict.

    `run` is a run that was loaded, a report that kept its run, or the path of one run. `config` selects and tunes
    detectors; `look_into_checkpoints` opens all its saved weights (needs torch), else only what the report depends on,
    where torch is installed. `run` stays unchanged. UsageError if the configuration names something unknown.
    """
    config = config or Config()
    return _judge(_run(run, "judge", config.roles), chosen_detectors(config), look_into_checkpoints)


def _judge(run: Run, detectors: Sequence[Detector], look_into_checkpoints: bool) -> RunReport:
    """Opens checkpoints of failed runs or on request, and those that the diagnosis would report as good."""
    with collected_faults([*run.problems]) as faults:
        report = _judged(run, detectors, look_into_checkpoints)
    report.problems = (*report.problems, *faults[len(run.problems) :])
    return report


def _judged(run: Run, detectors: Sequence[Detector], look_into_checkpoints: bool) -> RunReport:
    examined = Examination(run, detectors)
    inspected = Inspected(examined.checkpoints)
    if run.checkpoints and (examined.failed or look_into_checkpoints):
        inspected = _look_back(examined, inspected, every=look_into_checkpoints)
    report = examined.report(inspected)
    while (more := inspect_named(inspected, _named_as_good(report))) is not None:
        if not examined.failed and any(c.finite is False for c in more.checkpoints):
            more = _look_back(examined, more)  # it failed, as its weights show
        inspected, report = more, examined.report(more)
    return report


def _look_back(examined: Examination, inspected: Inspected, *, every: bool = False) -> Inspected:
    return inspect_run(inspected.checkpoints, examined.onset, examined.view.last_step, every=every)


def _named_as_good(report: RunReport) -> str | None:
    return report.diagnosis.last_good_checkpoint if report.diagnosis is not None else None


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


def compare(a: Run | RunReport | PathLike, b: Run | RunReport | PathLike) -> Comparison:
    """The first step at which `b` differs from the baseline `a`, exactly and beyond noise; settings that differ.

    Both are runs that were loaded, reports that kept their run, or paths.
    """
    return comparison.compare(_run(a, "compare"), _run(b, "compare"))


def localize(train_step: TrainStep, *, step: int | None = None, device: Any = None, fixes: bool = True) -> Culprit:
    """Reruns one training step and names what made it fail: module, operator, line, samples, fixes. Needs torch.

    `step` is the last one to look at, counted as in the log (default: all batches of a list, or the one `batch`);
    `device` that of the reruns, by default the model's; `fixes` whether fixes are tried. `train_step` and the process
    are unchanged afterwards. ReplayError where the step cannot be run.
    """
    from postmortem.replay.culprit.localize import localize as run

    return run(train_step, step=step, device=device, fixes=fixes)


def replay(
    target: Run | RunReport | PathLike,
    *,
    recipe: str | None = None,
    step: int | None = None,
    checkpoint: PathLike | None = None,
    device: str | None = None,
    fix: bool = True,
    trust: bool = False,
    progress: Callable[[int, int, StepResult], None] | None = None,
    repro: PathLike | None = None,
) -> ReplayResult:
    """Reruns the step at which the run `target` failed and names what made it fail. Needs torch.

    `target` is a run or its report, a run folder, its log, or a checkpoint (its log is searched for in the same
    folder). `recipe` is ``FILE.py[:function]``, by default the recipe.py in or beside the run; `step` and `checkpoint`
    are used in place of those from the log; `device` is by default CUDA where there is one; `fix` tries fixes; `trust`
    unpickles whatever a checkpoint holds (only for your own files); `progress` is called with (steps done, steps in
    all, last result); `repro` is a folder for a script that shows the fault alone. ReplayError, NotFoundError,
    UsageError or MissingExtra say in one line what is in the way.
    """
    path = _path(target, "replay", of_run=True)
    _need_torch("replay")
    problems: list[Problem] = []
    with collected_faults(problems):
        result = _replayed(
            path,
            Path(checkpoint) if checkpoint is not None else None,
            problems,
            {
                "recipe": recipe,
                "step": step,
                "device": device,
                "fix": fix,
                "trust": trust,
                "progress": progress,
                "repro": Path(repro) if repro is not None else None,
            },
        )
    notes = (f"{p.path}: {p.what}; lost: {p.lost}" for p in problems)
    return replace(result, notes=(*result.notes, *notes)) if problems else result


def _replayed(target: Path, checkpoint: Path | None, problems: list[Problem], options: dict[str, Any]) -> ReplayResult:
    meant = resolve(target)
    report = None
    if meant.files is not None:
        report = judge(_read(meant.files, None, [meant.root], meant.shared))
    start = checkpoint if checkpoint is not None else meant.checkpoint
    run = report.run if report is not None else None
    from postmortem.replay import driver

    config = config_for_replay(run, meant.folder, problems)
    return driver.replay(meant.folder, run=run, report=report, config=config, checkpoint=start, **options)


def _add_culprit(report: RunReport) -> None:
    """Replays a failed run; its report carries the culprit, or a note with the reason why there is none."""
    _need_torch("replay")
    from postmortem.replay import driver

    faults: list[Problem] = [*report.problems]
    try:
        with collected_faults(faults):
            result = driver.replay(Path(report.path), run=report.run, report=report)
    except PostmortemError as error:
        report.notes = (*report.notes, f"replay: {error}")
        return
    report.culprit, report.problems = result.culprit, tuple(faults)
    if result.next and report.diagnosis is not None:
        report.diagnosis = replace(report.diagnosis, next=result.next)


def checkpoints(path: Run | RunReport | PathLike, *, trust: bool = False) -> list[Health]:
    """The health of every checkpoint in and below `path`, by step, each compared with the one before. Needs torch.

    `path` is a file or a folder, or a run or its report, whose path is taken. `trust` unpickles whatever is in them:
    only for your own files. Damage is in `Health.problems`. NotFoundError where the path does not exist, MissingExtra
    without torch.
    """
    path = _path(path, "checkpoints", of_run=True)
    _need_torch("checkpoints")
    if not path.exists():
        raise NotFoundError(f"no such file or folder: {path}")
    from postmortem.checkpoints.health import health

    paths = [Path(c.path) for c in find_checkpoints(path)]
    return [health(p, previous, trust=trust) for previous, p in zip([None, *paths], paths, strict=False)]


def _need_torch(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(what, "replay")
    try:
        os.getcwd()
    except OSError:  # torch would end the process
        raise PostmortemError(
            f"{what}: the working directory is gone, and torch needs one: cd to a folder that exists"
        ) from None
