"""The functions that the command line, notebooks and plugins call: `scan`, `load`, `judge`, `compare`, `replay`, …"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from postmortem._lazy import need_torch
from postmortem._version import __version__
from postmortem.checkpoints.captures import is_capture
from postmortem.checkpoints.find import find_checkpoints
from postmortem.core import model
from postmortem.core.config import Config
from postmortem.core.errors import NotFoundError, UsageError
from postmortem.core.registry import collected_faults
from postmortem.core.report import Report, RunReport, tell_apart
from postmortem.core.run import Run
from postmortem.judging import chosen_detectors
from postmortem.judging.exit_code import exit_code as exit_code
from postmortem.judging.inspected import judge_inspected
from postmortem.judging.without_files import without_commands
from postmortem.registries import OF_A_SCAN as OF_A_SCAN
from postmortem.registries import broken_plugins as broken_plugins
from postmortem.registries import registries as registries
from postmortem.runs.config import config_for_replay
from postmortem.runs.each import read
from postmortem.runs.frames import is_frame, runs_of
from postmortem.runs.group import discover
from postmortem.runs.load import load_run
from postmortem.runs.remote import Copy, copied, is_url, named, naming
from postmortem.runs.target import chosen, resolve, shared_folders
from postmortem.scanning import NOT_REPLAYED as NOT_REPLAYED
from postmortem.scanning import Examiner, reports_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    import pandas as pd

    from postmortem.checkpoints.health import Health
    from postmortem.core.comparison import Comparison
    from postmortem.core.culprit import Culprit, ReplayResult
    from postmortem.core.model import Problem
    from postmortem.replay.model import TrainStep
    from postmortem.replay.step.result import StepResult
    from postmortem.runs.claimed import RunFiles
    from postmortem.runs.target import Target

    PathLike = str | os.PathLike[str]
    Given = Run | RunReport | pd.DataFrame | PathLike
    """One run: loaded, judged, as a table, or the path of its files."""


def load(path: PathLike, *, roles: Mapping[str, str] | None = None) -> Run:
    """Reads one run: its numbers (`.frame`), log events (`.events`), and what could not be read (`.problems`).

    `path` is a file or a folder, or the URL of one (``s3://…``, ``https://…``; extra [remote]): what readers use there
    is copied first. `roles` maps tags to roles if their names do not show them.

    The content of a file never raises: damage is listed in `problems`, and the frames may be empty. Raises
    NotFoundError if the path does not exist, and UsageError if it holds several runs (the message lists them).

    >>> run = load("sample_runs/killed")
    >>> run.ended, run.roles
    ('killed', {'loss': 'loss', 'time': 'step_time', 'mfu': 'throughput'})
    >>> list(run.frame.columns)
    ['run', 'source', 'rank', 'segment', 'tag', 'step', 'wall_time', 'value']
    """
    if not is_url(path):
        return load_run(_path(path, "load"), roles)
    copy = copied(cast("str", path))
    with naming([copy]):
        run = load_run(copy.path, roles)
    run.problems.extend(copy.problems)
    return copy.named(replace(run, reload=partial(load, path, roles=roles), url=str(run.path)))


def _path(given: object, verb: str, *, of_run: bool = False) -> Path:
    """The path given to `verb`; with `of_run`, also the path of a run or of its report. Otherwise raises TypeError."""
    if of_run and isinstance(given, (Run, RunReport)):
        return Path(given.path)
    if is_url(given):
        raise UsageError(f"{verb} needs local files, copy them here first: {given}")
    if isinstance(given, (str, os.PathLike)):
        return Path(given)
    kinds = "a path, a Run or a RunReport" if of_run else "a path"
    advice = ": choose one of its runs, such as report[0]" if of_run and isinstance(given, Report) else ""
    raise TypeError(f"{verb}() takes {kinds}, not {type(given).__name__}{advice}")


def _run(given: Given, verb: str, roles: Mapping[str, str] | None = None) -> Run:
    """The run given to `verb`: a run, the run kept in a report, the run in a table, or a run loaded from a path."""
    if isinstance(given, Run):
        return given
    if isinstance(given, RunReport) and given.run is not None:
        return given.run
    if is_frame(given):
        run, *others = runs_of(cast("pd.DataFrame", given), roles=roles)
        if others:
            raise UsageError(f"the frame holds {len(others) + 1} runs, give the rows of one; scan shows each")
        return run
    return load(cast("str", given) if is_url(given) else _path(given, verb, of_run=True), roles=roles)


def scan(
    paths: PathLike | Iterable[PathLike] | pd.DataFrame,
    *,
    config: Config | None = None,
    keep: bool = True,
    look_into_checkpoints: bool = False,
    baseline: Given | None = None,
    replay_failed: bool = False,
    draw: bool = False,
    locate: bool = False,
    jobs: int | None = 1,
    executor: Executor | str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Reads every run below `paths`, or in a pandas DataFrame, and reports what happened to each.

    A DataFrame is wide (a column per metric) or long (columns `tag` and `value`), with a step column; a column `run`
    separates runs, see `postmortem.runs.frames.runs_of`. A path may be a URL, as for `load`.

    config: selects and configures detectors. keep: keep each `Run` in its report (for notebooks; uses memory).
    look_into_checkpoints: read all checkpoints of every run (needs torch); otherwise only those that a report depends
    on are read, if torch is installed. baseline: a run, its report or its path, with which each run is compared.
    replay_failed: rerun the failing step of each failed run that has a recipe.py and a checkpoint, and add the culprit
    to its report (this runs the user's recipe). draw: keep the curves and log lines that the HTML page shows.
    locate: add the file and line of each finding to its evidence, if known. executor: reads and judges the runs
    elsewhere, in place of `jobs`: the address of a Dask cluster (``dask://HOST:PORT``; extra [dask]) or an executor of
    `concurrent.futures`; its workers need the same files at the same paths, and this package. progress: called with
    (done, total, name of the run that is read next).

    Raises NotFoundError if a path does not exist or nothing below it can be read, and UsageError if the configuration
    contains an unknown name.

    >>> report = scan("sample_runs/nan-log-of-zero")
    >>> report.runs[0].verdict, report.runs[0].findings[0].name
    ('failed', 'nan-onset')
    """
    config = config or Config()
    detectors = chosen_detectors(config)
    runs = runs_of(cast("pd.DataFrame", paths), roles=config.roles) if is_frame(paths) else []
    roots, copies, found, problems = _found([] if is_frame(paths) else _given(paths), absolute=executor is not None)
    examiner = Examiner(
        detectors=detectors,
        roles=config.roles,
        roots=roots,
        shared=shared_folders(found),
        keep=keep,
        look_into_checkpoints=look_into_checkpoints,
        reference=_reference(baseline, config) if baseline is not None else None,
        replay_failed=replay_failed,
        draw=draw,
        locate=locate,
    )
    reports = [examiner.report(run) for run in runs]
    reports += reports_of(found, examiner, jobs, progress, executor)
    if copies:
        reports = [_of_url(report, copies) for report in reports]
    tell_apart(reports)
    ordered = tuple(sorted(reports, key=_worst_first))
    options, problems = named(copies, (_options(roots, config), problems))
    return Report(runs=ordered, version=__version__, options=options, problems=tuple(problems))


def _found(
    given: Sequence[PathLike], *, absolute: bool = False
) -> tuple[list[Path], list[Copy], list[RunFiles], list[Problem]]:
    """The folders and files to search, the copies of URLs among them, the runs in them, and what is wrong with them."""
    copies = [copied(cast("str", one)) for one in given if is_url(one)]
    of_url = {copy.url: copy.path for copy in copies}
    roots = [of_url[cast("str", one)] if is_url(one) else _path(one, "scan") for one in given]
    roots = [root.absolute() for root in roots] if absolute else roots
    with naming(copies):
        found, problems = _discovered(roots) if roots else ([], [])
    return roots, copies, found, [*problems, *(problem for copy in copies for problem in copy.problems)]


def _of_url(report: RunReport, copies: Sequence[Copy]) -> RunReport:
    """A report that names the URLs for the copies; of these runs, no command that looks for local files."""
    if any(Path(report.path).is_relative_to(copy.path) for copy in copies):
        report = without_commands(report)
    return named(copies, report)


def _discovered(roots: Sequence[Path]) -> tuple[list[RunFiles], list[Problem]]:
    found, problems = discover(roots)
    if not found and not problems:
        kinds = "event files, .wandb, .out/.log, CSV, JSON and JSON lines, trainer_state.json, MLflow and Aim stores"
        raise NotFoundError(f"{', '.join(str(r) for r in roots)}: no training log found ({kinds})")
    return found, problems


def _options(roots: Sequence[Path], config: Config) -> dict[str, Any]:
    """The options of a scan, as its report shows them."""
    chosen = {"select": list(config.select), "ignore": list(config.ignore), "fail_on": config.fail_on}
    return {"paths": [str(r) for r in roots], **chosen}


def _reference(baseline: Given, config: Config) -> Run:
    run = _run(baseline, "scan", config.roles)
    if not run.n_points:
        raise NotFoundError(f"{run.path}: no numbers in the baseline")
    return run


def _given(paths: PathLike | Iterable[PathLike] | pd.DataFrame) -> list[PathLike]:
    """The paths and URLs given to a scan, as a list."""
    given = paths if isinstance(paths, Iterable) and not isinstance(paths, (str, os.PathLike)) else [paths]
    listed = cast("list[PathLike]", [*given])
    if not listed:
        raise UsageError("scan: no path was given")
    return listed


def judge(run: Given, config: Config | None = None, *, look_into_checkpoints: bool = False) -> RunReport:
    """Judges one run: runs the detectors, looks for the root cause, and gives the verdict.

    `run` is a loaded run, a report that kept its run, a DataFrame with one run, or a path; it is not changed. `config`
    selects and configures detectors. `look_into_checkpoints` reads all its checkpoints (needs torch); otherwise only
    those that the report depends on are read, if torch is installed. Raises UsageError if the configuration contains an
    unknown name.
    """
    config = config or Config()
    return judge_inspected(_run(run, "judge", config.roles), chosen_detectors(config), look_into_checkpoints)


def _worst_first(report: RunReport) -> tuple[int, str]:
    return model.VERDICTS.index(report.verdict), report.name


def compare(a: Given, b: Given) -> Comparison:
    """Compares run `b` with the baseline `a`: the first step at which they differ, and the settings that differ.

    Both are loaded runs, reports that kept their run, DataFrames with one run, or paths. The first step is given for an
    exact comparison and for a difference beyond noise.
    """
    from postmortem.judging import comparison

    return comparison.compare(_run(a, "compare"), _run(b, "compare"))


def localize(train_step: TrainStep, *, step: int | None = None, device: Any = None, fixes: bool = True) -> Culprit:
    """Reruns one training step and names what made it fail: module, operator, line, samples, fixes. Needs torch.

    `step` is the last step to run, numbered as in the log (default: all batches of a list, or the one `batch`).
    `device` is the device of the reruns (default: that of the model). `fixes`: whether fixes are tried. `train_step`
    and the state of the process are restored afterwards. Raises ReplayError if the step cannot be run.
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

    `target` is a run or its report, a run folder, a log, or a checkpoint (its log is searched for in the same folder).
    `recipe` is ``FILE.py[:function]`` (default: the recipe.py in or beside the run). `step` and `checkpoint` replace
    those derived from the log. `device` defaults to CUDA if available. `fix`: whether fixes are tried. `trust`
    unpickles everything in a checkpoint, which can run code (only for your own files). `progress` is called with (steps
    done, total steps, last result). `repro` is a folder to which a script is written that reproduces the failure alone.

    Raises ReplayError, NotFoundError, UsageError or MissingExtra with a one-line message.
    """
    path = _path(target, "replay", of_run=True)
    need_torch("replay")
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
    run = _run_of(meant, target)
    report = judge(run) if run is not None else None
    start = checkpoint if checkpoint is not None else meant.checkpoint
    from postmortem.attach.ranks import by_recipe

    config = config_for_replay(run, meant.folder, problems)
    return by_recipe(meant.folder, run=run, report=report, config=config, checkpoint=start, **options)


def _run_of(meant: Target, path: Path) -> Run | None:
    return chosen(read(meant.files, None, [meant.root], meant.shared), path) if meant.files is not None else None


def rerun(
    target: Run | RunReport | PathLike,
    command: Sequence[str],
    *,
    step: int | None = None,
    fix: bool = True,
    sandbox: str = "auto",
    offline: bool = True,
    fork: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
) -> ReplayResult:
    """Runs the training `command` of the run `target` again up to the failing step, and names the culprit.

    The files that the command writes do not reach the user's files (`sandbox`: "auto", "overlay", "landlock", "none").
    `offline`: no network access. `fork`: whether copies of the command's processes may repeat the step; otherwise, as
    on a GPU, the command is run a second time and repeats the step itself. `progress` is called with (optimizer steps
    done, logged step or None).
    """
    how: dict[str, Any] = {"step": step, "fix": fix, "sandbox": sandbox, "offline": offline, "fork": fork}
    how["progress"] = progress
    from postmortem.attach import driver, recalled

    if is_capture(path := _path(target, "rerun", of_run=True)):
        return recalled.recall(path, command, **how)
    run = _run_of(meant := resolve(path), path)
    report = judge(run) if run is not None else None
    return driver.rerun(meant.folder, command, run=run, report=report, **how)


def checkpoints(path: Run | RunReport | PathLike, *, trust: bool = False, checksums: bool = False) -> list[Health]:
    """The health of every checkpoint in and below `path`, by step, each compared with the previous one. Needs torch.

    `path` is a file or a folder, or a run or its report, whose path is used. `trust` unpickles everything, which can
    run code (only for your own files). `checksums` also verifies the checksums of archives of more than 64 MiB. Damage
    is listed in `Health.problems`. Raises NotFoundError if the path does not exist, MissingExtra without torch.
    """
    path = _path(path, "checkpoints", of_run=True)
    need_torch("checkpoints")
    if not path.exists():
        raise NotFoundError(f"no such file or folder: {path}")
    from postmortem.checkpoints.health import health

    paths = [Path(c.path) for c in find_checkpoints(path)]
    pairs = zip([None, *paths], paths, strict=False)
    return [health(p, previous, trust=trust, checksums=checksums) for previous, p in pairs]
