"""Trainings in a test suite: ``postmortem.assert_healthy("runs/smoke-test")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from postmortem.core.config import Config
    from postmortem.core.report import Report, RunReport


def assert_healthy(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fail_on: str = "error",
    config: Config | None = None,
) -> Report:
    """Scans `paths` and returns the report. Raises AssertionError, with what happened, if a run is not healthy.

    fail_on: the lowest severity that fails ("error" or "warning"). config: selects and configures detectors. Runs that
    could not be judged, or whose data was partly lost, fail as well. Raises NotFoundError if there is no log.
    For pytest: ``def test_smoke(tmp_path): train(tmp_path); postmortem.assert_healthy(tmp_path)``.
    """
    __tracebackhide__ = True
    from postmortem import api
    from postmortem.core.config import FAIL_ON
    from postmortem.core.errors import UsageError

    if fail_on not in FAIL_ON[:2]:
        raise UsageError(f"assert_healthy: fail_on is {' or '.join(map(repr, FAIL_ON[:2]))}, not {fail_on!r}")
    report = api.scan(paths, config=config)
    if api.exit_code(report, fail_on) == 0:
        return report
    bad = [run for run in report if api.exit_code(_alone(report, run), fail_on) != 0]
    lines = [line for run in bad for line in _told(run)] or [f"{p.path}: {p.what}" for p in report.problems]
    raise AssertionError("\n".join([f"{len(bad)} of {len(report)} runs not healthy", *lines]))


def _alone(report: Report, run: RunReport) -> Report:
    from dataclasses import replace

    return replace(report, runs=(run,), problems=())


def _told(run: RunReport) -> list[str]:
    from postmortem.reporters.shared.outline import headline, problem_line

    story = run.diagnosis
    lines = [f"{run.path}: {run.verdict}: {headline(run)}"]
    lines += [f"  {story.summary}", *(f"  next: {action}" for action in story.next[:2])] if story else []
    return lines + [f"  {problem_line(problem, run)}" for problem in run.problems if problem.lost]
