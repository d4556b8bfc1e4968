"""The runs of a scan, one after the other or in several processes: each is read, judged and made a report."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem._lazy import need_torch
from postmortem.core.errors import PostmortemError, UsageError
from postmortem.core.model import Problem
from postmortem.core.registry import collected_faults
from postmortem.core.run import Run
from postmortem.judging.drawing import drawing
from postmortem.judging.inspected import judge_inspected
from postmortem.registries import OF_A_SCAN, registries
from postmortem.runs import cache, executors, known_reports, workers
from postmortem.runs.each import read
from postmortem.runs.excerpts import excerpts
from postmortem.runs.locate import located

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from postmortem.core.report import RunReport
    from postmortem.detectors import Detector
    from postmortem.runs.claimed import RunFiles

NOT_REPLAYED = "replay: "
"""How a note begins that says why `scan --replay` did not rerun a run."""


@dataclass(frozen=True, kw_only=True)
class Examiner:
    """What a scan does with the files of a run; the options are those of `postmortem.scan`."""

    detectors: Sequence[Detector]
    roles: Mapping[str, str]
    roots: Sequence[Path] = ()
    shared: Collection[Path] = ()
    keep: bool = True
    look_into_checkpoints: bool = False
    reference: Run | None = None
    replay_failed: bool = False
    draw: bool = False
    locate: bool = False
    uses_cache: bool = False

    def __call__(self, files: RunFiles) -> list[RunReport]:
        """The reports of the run, or of the runs that were written at the same time, in these files."""
        if self._how is None:
            return self._made(files)
        return known_reports.reports_of(files, self.roots, self.shared, self._how, self._made)

    @cached_property
    def _how(self) -> list[str] | None:
        """What a report depends on beside files; None if it holds more than is kept of it, or if there are plugins."""
        if self.keep or self.reference is not None or self.replay_failed or self.draw or self.locate or _extended():
            return None
        of_detectors = (f"{d.code} {getattr(d, 'options', None)!r}" for d in self.detectors)
        return [str(self.look_into_checkpoints), repr(sorted(self.roles.items())), *of_detectors]

    def _made(self, files: RunFiles) -> list[RunReport]:
        return [self.report(run) for run in read(files, self.roles, self.roots, self.shared)]

    def report(self, run: Run) -> RunReport:
        """The report of a run that was read."""
        report = judge_inspected(run, self.detectors, self.look_into_checkpoints)
        if self.reference is not None and run.path.resolve() != self.reference.path.resolve():
            from postmortem.judging import comparison

            report.notes = (*report.notes, f"baseline: {comparison.compare(self.reference, run).summary()}")
        _add_saved_culprit(report, run)
        if self.replay_failed and report.verdict == "failed":
            _add_culprit(report)
        if self.locate:
            report.findings = located(run, report.findings)
        if self.draw:
            report.drawing = replace(drawing(run, report), excerpts=excerpts(run.event_list))
        if not self.keep:
            report.run = None
        return report

    @contextmanager
    def inside(self, note: Callable[[str], None]) -> Iterator[None]:
        """In a process of its own: with the cache, if the scan uses it."""
        if not self.uses_cache:
            yield
            return
        with cache.cached(note):
            yield

    def lost(self, files: RunFiles, why: str) -> list[RunReport]:
        """The report on a run whose process died."""
        problem = Problem(path=str(files.path), what=why, lost="the run")
        run = Run(name=files.name, path=files.path, streams=[], event_list=[], problems=[problem], sources=[])
        return [self.report(run)]


def _extended() -> bool:
    """Whether something in use comes from elsewhere: what it finds may change without a change of this package."""
    loaded = (registry for registry in registries(*OF_A_SCAN).values() if registry.loaded)
    return any(not item.__module__.startswith("postmortem.") for registry in loaded for item in registry)


def reports_of(
    found: Sequence[RunFiles],
    examiner: Examiner,
    jobs: int | None,
    progress: Callable[[int, int, str], None] | None,
    executor: Executor | str | None = None,
) -> Iterator[RunReport]:
    """The reports of these runs, in their order: by `executor`, or in `jobs` processes (None: as many as pay off)."""
    told = progress or _silent
    if executor is not None:
        yield from _elsewhere(found, examiner, executor, told)
        return
    jobs = 1 if examiner.replay_failed else workers.worthwhile(found) if jobs is None else jobs
    if min(jobs, len(found)) > 1:
        yield from _in_processes(found, examiner, jobs, told)
    else:
        for i, files in enumerate(found):
            told(i, len(found), files.name)
            yield from examiner(files)
    told(len(found), len(found), "")


def _elsewhere(
    found: Sequence[RunFiles], examiner: Examiner, executor: Executor | str, told: Callable[[int, int, str], None]
) -> Iterator[RunReport]:
    if examiner.replay_failed:
        raise UsageError("failed steps are replayed on this machine: leave out the executor, or the replay")
    results: dict[int, list[RunReport]] = {}
    with executors.executor_at(executor) if isinstance(executor, str) else nullcontext(executor) as opened:
        for index, reports in executors.results_of(opened, examiner, found):
            results[index] = reports
            told(len(results), len(found), found[index].name)
    for index in range(len(found)):
        yield from results[index]
    told(len(found), len(found), "")


def _silent(done: int, total: int, name: str) -> None:
    pass


def _in_processes(
    found: Sequence[RunFiles], examiner: Examiner, jobs: int, told: Callable[[int, int, str], None]
) -> Iterator[RunReport]:
    for registry in registries(*OF_A_SCAN).values():
        registry.load()  # once, not in every process
    used = cache.in_use()
    work = replace(examiner, uses_cache=used is not None)
    pool = workers.Processes(work, found, jobs, used.note if used is not None else _unheard)
    longest_first = sorted(range(len(found)), key=lambda i: -workers.size_of(found[i]))
    results: dict[int, list[RunReport]] = {}
    told(0, len(found), found[longest_first[0]].name)
    for index, reports in pool.results(longest_first):
        results[index] = reports
        told(len(results), len(found), found[index].name)
    for index in range(len(found)):
        yield from results[index]


def _unheard(note: str) -> None:
    pass


def _add_saved_culprit(report: RunReport, run: Run) -> None:
    """The culprit that `postmortem run` named while it watched the run, and what to do about it."""
    noted = run.watched
    if noted is None or noted.culprit is None or report.verdict == "healthy":
        return
    report.culprit = noted.culprit
    if noted.next and report.diagnosis is not None:
        report.diagnosis = replace(report.diagnosis, next=noted.next)


def _add_culprit(report: RunReport) -> None:
    """Replays a failed run; its report carries the culprit, or a note with the reason why there is none."""
    need_torch("replay")
    from postmortem.attach.ranks import by_recipe
    from postmortem.replay.advice import with_check
    from postmortem.replay.recipe.load import Recipe

    if Recipe.beside(Path(report.path)) is None and report.culprit is not None:
        return  # as `postmortem run` named it
    if Recipe.beside(Path(report.path)) is None:
        report.notes = (*report.notes, f"{NOT_REPLAYED}{_not_replayed(report)}")
        return
    faults: list[Problem] = [*report.problems]
    try:
        with collected_faults(faults):
            result = by_recipe(Path(report.path), run=report.run, report=report)
    except PostmortemError as error:
        report.notes = (*report.notes, f"{NOT_REPLAYED}{error}")
        return
    report.culprit, report.problems = result.culprit, tuple(faults)
    if result.next and report.diagnosis is not None:
        report.diagnosis = replace(report.diagnosis, next=with_check(result, Path(report.path)))


def _not_replayed(report: RunReport) -> str:
    """Why a run without a recipe was not replayed, and what can be typed instead."""
    actions = report.diagnosis.next if report.diagnosis is not None else ()
    again = next((a for a in actions if "postmortem replay " in a or "postmortem run " in a), None)
    if again is None:
        return "no recipe.py in or beside the run, and no step of it is known to have failed"
    return f"no recipe.py in or beside the run; instead: {again}"
